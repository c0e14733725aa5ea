//! The secret of a served grant: a UUID that only its client knows. The file has its SHA-256.
//!
//! The UUID ends with the number of the row in which its hash is stored; its other 90 bits are
//! random. The secret of a claim with an idempotency key is made from that key and from random
//! bytes that are stored, so that the same client gets it again and a reader of the file does not.

use std::fmt::Write;

use ring::digest::{Context, SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use crate::access::Caller;
use crate::served_rows::Secret;

/// How many random bytes a secret is made from.
const RANDOM_BYTES: usize = 16;

/// The idempotency key of a claim, and the client that has sent it.
#[derive(Clone, Copy)]
pub(crate) struct ClaimKey<'a> {
    pub(crate) caller: Caller,
    pub(crate) key: &'a str,
}

/// Returns the bytes to make a secret from, or `None` if the system has no random numbers.
pub(crate) fn random() -> Option<[u8; RANDOM_BYTES]> {
    let mut bytes = [0; RANDOM_BYTES];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}

/// Makes a secret for the row with this number, from random bytes and the key of the claim if it
/// has one.
pub(crate) fn make(
    random: [u8; RANDOM_BYTES],
    key: Option<ClaimKey<'_>>,
    number: i64,
) -> Secret<String> {
    let (made, salt) = match key {
        Some(key) => (derive(&random, key, number), Some(random.to_vec())),
        None => (uuid(random, number), None),
    };
    Secret { hash: Some(hash(&made)), salt, made }
}

/// Makes the secret again that a claim with this key got, if it was made from this salt.
pub(crate) fn derive(salt: &[u8], key: ClaimKey<'_>, number: i64) -> String {
    let mut context = Context::new(&SHA256);
    context.update(salt);
    context.update(&key.caller.bytes());
    context.update(key.key.as_bytes());
    let mut bytes = [0; RANDOM_BYTES];
    bytes.iter_mut().zip(context.finish().as_ref()).for_each(|(byte, from)| *byte = *from);
    uuid(bytes, number)
}

/// Returns the identity of a request with an idempotency key. Each part comes with its length, so
/// that two different requests never have the same.
pub(crate) fn request_hash(caller: Caller, call: &str, queue: &str, key: &str) -> [u8; 16] {
    let mut context = Context::new(&SHA256);
    context.update(&caller.bytes());
    for part in [call, queue, key] {
        context.update(&part.len().to_be_bytes());
        context.update(part.as_bytes());
    }
    let mut hash = [0; 16];
    hash.iter_mut().zip(context.finish().as_ref()).for_each(|(byte, from)| *byte = *from);
    hash
}

/// Returns the key that the slot of a named pool is stored under, for a borrow with an idempotency
/// key.
pub(crate) fn slot_key(caller: Caller, pool: &str, key: &str) -> String {
    u128::from_be_bytes(request_hash(caller, "slot", pool, key)).to_string()
}

/// Returns the number of the row of a secret, and its hash. `None` if the text is no secret.
pub(crate) fn read(grant: &str) -> Option<(i64, Vec<u8>)> {
    let id = uuid::Uuid::try_parse(grant).ok().filter(|_| grant.len() == 36)?;
    let text = id.as_hyphenated().to_string();
    let [.., a, b, c, d] = *id.as_bytes();
    Some((i64::from(u32::from_be_bytes([a, b, c, d])), hash(&text)))
}

pub(crate) fn hash(grant: &str) -> Vec<u8> {
    digest(&SHA256, grant.as_bytes()).as_ref().to_vec()
}

/// Writes a UUID with the number of a row at its end.
fn uuid(mut bytes: [u8; RANDOM_BYTES], number: i64) -> String {
    let number = u32::try_from(number).unwrap_or_default().to_be_bytes();
    let (_, end) = bytes.split_at_mut(RANDOM_BYTES - number.len());
    end.copy_from_slice(&number);
    let id = uuid::Builder::from_random_bytes(bytes).into_uuid();
    let mut text = String::with_capacity(36);
    // Writing to a String cannot fail.
    let _ = write!(text, "{}", id.as_hyphenated());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_leads_to_its_row_and_is_random_otherwise() {
        let made = make([7; RANDOM_BYTES], None, 0x0102_0304);
        assert_eq!(made.made, "07070707-0707-4707-8707-070701020304");
        assert_eq!(read(&made.made), Some((0x0102_0304, made.hash.unwrap_or_default())));
        assert_eq!(read(&made.made.to_uppercase()), read(&made.made));
        assert_ne!(random(), random());
        for text in ["", "x", "07070707070747078707070701020304"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn the_same_client_with_the_same_key_gets_its_secret_again_and_no_other_does() {
        let one = ClaimKey { caller: Caller::default(), key: "attempt-17" };
        let made = make([7; RANDOM_BYTES], Some(one), 5);
        let salt = made.salt.unwrap_or_default();
        assert_eq!(derive(&salt, one, 5), made.made);
        let other = ClaimKey { caller: Caller::from_key("k"), key: "attempt-17" };
        assert_ne!(derive(&salt, other, 5), made.made);
        assert_ne!(derive(&salt, ClaimKey { key: "attempt-18", ..one }, 5), made.made);
        assert_ne!(derive(&[8; RANDOM_BYTES], one, 5), made.made);
    }
}
