//! A grant shown to a service that cannot see the file of the lease.
//!
//! `cargo run -p litelease --features credentials --example credential [FOLDER]`

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use litelease::credentials::{DEFAULT_MAX_TTL, Issuer, Verifier};
use litelease::{Gate, Litelease};

const TTL: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "credential".into()));
    std::fs::create_dir_all(&folder)?;

    // The issuer: an app with the file of the leases and a folder of keys.
    let db = Litelease::open_own(folder.join("app.sqlite3"))?;
    let issuer = Issuer::at(folder.join("keys"));
    issuer.rotate(DEFAULT_MAX_TTL)?;
    issuer.keys()?.save(folder.join("jwks.json"))?;

    // The service: the public keys, the id of the issuer, its own name, and a gate.
    let verifier = Verifier::reading(folder.join("jwks.json"), &db.issuer()?, "storage")?;
    let gate = Gate::open(folder.join("gate.sqlite3"))?;
    let upload = |credential: &str| match gate.admit_credential(&verifier, credential) {
        Ok(shown) => format!("stored for {}", shown.owner),
        Err(refused) => format!("refused: {refused}"),
    };

    let first = db.claim("upload/7", "a", TTL)?.acquired().ok_or("it is taken")?;
    let a = issuer.issue(&db, &first, "storage", TTL)?.issued().ok_or("a has lost it")?;
    println!("a: {}", upload(&a.credential));

    // An operator takes the lease from a, and b gets it. The credential of a has not expired.
    let _ = db.break_lease("upload/7")?;
    let second = db.claim("upload/7", "b", TTL)?.acquired().ok_or("it is taken")?;
    println!("a: {}", upload(&a.credential));
    let b = issuer.issue(&db, &second, "storage", TTL)?.issued().ok_or("b has lost it")?;
    println!("b: {}", upload(&b.credential));
    println!("a: {}", upload(&a.credential));

    db.release(&second)?;
    let late = issuer.issue(&db, &second, "storage", TTL)?;
    println!("b asks again: {late:?}");
    Ok(())
}
