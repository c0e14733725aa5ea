//! Calls on what a grant carries: values, limits, checkpoints, requests for the lease. And their
//! answers.

use litelease_core::Scope;

use crate::answer::POSITIVE;
use crate::call::Call;
use crate::field::{MostTime, Stored, Text, Ttl};
use crate::leases::{GRANT, Lease, NAME, OpenRequest};
use crate::pools::TTL;
use crate::value::Value;

const VALUE: &str = "a text, a number, null, or bytes as {\"base64\":…}";

calls! {
    /// Attaches a value to a live grant; it ends with the grant
    Attach = Call {
        name: "attach",
        scopes: &[Scope::Claim],
        errors: &[409],
        ..Call::post("/v1/attach")
    } => Attached {
        grant: Text = GRANT,
        value: Stored = VALUE,
    }

    /// Limits a live grant: renewals need progress, and none goes beyond an end
    Limit = Call {
        name: "limit",
        scopes: &[Scope::Claim],
        errors: &[409],
        ..Call::post("/v1/limit")
    } => Limited {
        grant: Text = GRANT,
        progress_within: MostTime =
            "renewals are refused without progress within so many seconds",
        max_time: MostTime = "no renewal goes beyond so many seconds from now",
    }

    /// Reports that the holder of a limited grant makes progress
    Progress = Call {
        name: "progress",
        scopes: &[Scope::Claim],
        is_frequent: true,
        errors: &[409],
        ..Call::post("/v1/progress")
    } => Progressed {
        grant: Text = GRANT,
    }

    /// Stores progress under the newest grant of a name
    StoreCheckpoint = Call {
        name: "checkpoint",
        scopes: &[Scope::Claim],
        errors: &[409],
        ..Call::post("/v1/checkpoint")
    } => CheckpointStored {
        grant: Text = GRANT,
        value: Stored = VALUE,
    }

    /// Returns the latest checkpoint of a name
    LastCheckpoint = Call {
        name: "last_checkpoint",
        // A successor reads where it goes on, so a key that may claim may read it, too.
        scopes: &[Scope::Claim, Scope::Observe],
        ..Call::get("/v1/checkpoint")
    } => Checkpoint {
        name: Text = NAME,
    }

    /// Asks the holder of a name to give it up; a claim by the requester that waits repeats it
    RequestLease = Call {
        name: "request",
        scopes: &[Scope::Claim],
        errors: &[409],
        ..Call::post("/v1/request")
    } => OpenRequest {
        name: Text = NAME,
        requester: Text =
            "who asks: the owner of the claim that waits; a fresh text for each attempt",
        within: Ttl = "seconds after which renewals of the holder are refused",
    }

    /// Hands a lease to its requester, who fetches its grant by a claim that waits
    HandOver = Call {
        name: "hand_over",
        scopes: &[Scope::Claim],
        errors: &[409],
        ..Call::post("/v1/hand-over")
    } => Lease {
        grant: Text = GRANT,
        ttl: Ttl = TTL,
    }
}

answers! {
    /// A value is attached.
    Attached { attached: bool, name: String, token: i64 = POSITIVE }

    /// A grant is limited.
    Limited { limited: bool, name: String, token: i64 = POSITIVE }

    /// Progress is counted.
    Progressed { name: String, progressed: bool, token: i64 = POSITIVE }

    /// A checkpoint is stored.
    CheckpointStored { name: String, stored: bool, token: i64 = POSITIVE }

    /// The latest checkpoint of a name. All but the name is null if there is none.
    Checkpoint {
        name: String,
        token: Option<i64>,
        updated_at_unix: Option<i64>,
        value: Value,
    }
}
