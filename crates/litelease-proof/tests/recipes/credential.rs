//! Credential: a grant shown to a service that cannot see the file of the lease.

use std::time::Duration;

use litelease::credentials::{DEFAULT_MAX_TTL, Error, Issued, Issuer, Refused as Reason, Verifier};
use litelease::{Gate, Lease, Litelease};
use litelease_proof::rig::{LONG, acquired};

use crate::{End::*, Protection::*, both_halves};

const MINUTE: Duration = Duration::from_secs(60);

/// An app with leases and keys, in a temporary folder.
struct App {
    folder: tempfile::TempDir,
    db: Litelease,
    issuer: Issuer,
}

impl App {
    fn new(max_ttl: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let db = Litelease::open_own(folder.path().join("app.sqlite3")).unwrap();
        let issuer = Issuer::at(folder.path().join("keys"));
        issuer.rotate(max_ttl).unwrap();
        App { folder, db, issuer }
    }

    fn issue(&self, lease: &Lease, ttl: Duration) -> Issued {
        self.issuer.issue(&self.db, lease, "storage", ttl).unwrap().issued().unwrap()
    }

    /// The check at the service, with the public keys alone.
    fn verifier(&self) -> Verifier {
        Verifier::new(self.issuer.keys().unwrap(), &self.db.issuer().unwrap(), "storage").unwrap()
    }
}

/// An operator takes the lease back. The credential of its holder has not expired, and is shown
/// again after that of the successor.
#[test]
fn a_credential_revoked_but_unexpired_is_refused() {
    both_halves(Refused, |protection| {
        let app = App::new(DEFAULT_MAX_TTL);
        let verifier = app.verifier();
        let gate = Gate::open(app.folder.path().join("gate.sqlite3")).unwrap();
        let accept = |credential: &str| match protection {
            Off => verifier.verify(credential).map(drop).map_err(Error::from),
            On => gate.admit_credential(&verifier, credential).map(drop),
        };
        let first = acquired(app.db.claim("upload/7", "a", LONG));
        let a = app.issue(&first, MINUTE);
        accept(&a.credential).unwrap();
        let _ = app.db.break_lease("upload/7").unwrap();
        let second = acquired(app.db.claim("upload/7", "b", LONG));
        // No more credentials for the old grant, for any caller.
        assert!(app.issuer.issue(&app.db, &first, "storage", MINUTE).unwrap().issued().is_none());
        accept(&app.issue(&second, MINUTE).credential).unwrap();
        match accept(&a.credential) {
            Ok(()) => Failed,
            Err(Error::Refused(Reason::Stale { .. })) => Refused,
            Err(error) => panic!("{error}"),
        }
    });
}

/// A credential is stolen, with a ttl of a day. No other owner ever claims the name, so no newer
/// token comes to the gate.
#[test]
fn a_long_ttls_blast_radius_is_capped() {
    const DAY: Duration = Duration::from_secs(86_400);
    both_halves(Capped, |protection| {
        let app = App::new(if protection == On { DEFAULT_MAX_TTL } else { DAY });
        let lease = acquired(app.db.claim("upload/7", "a", DAY));
        let stolen = app.issue(&lease, DAY);
        let _ = app.db.release(&lease).unwrap();
        let later_ms = |later: Duration| litelease::now_ms() + later.as_millis() as i64;
        match app.verifier().verify_at(&stolen.credential, later_ms(DEFAULT_MAX_TTL)) {
            Ok(_) => {
                let hours = app.verifier().verify_at(&stolen.credential, later_ms(DAY / 2));
                assert!(hours.is_ok(), "for hours");
                Failed
            }
            Err(Reason::Expired { .. }) => Capped,
            Err(error) => panic!("{error}"),
        }
    });
}
