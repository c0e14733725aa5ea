//! The proofs of Litelease: what its tests share.
//!
//! Scenario files and their players, the rule with bugs planted on purpose, and helpers for real
//! files and real processes. The tests themselves are in `tests/`.

pub mod believers;
pub mod boot;
pub mod careless;
pub mod cluster_player;
pub mod command;
pub mod crate_player;
pub mod disk;
pub mod etcd;
pub mod handoff_model;
pub mod hosted_player;
pub mod http_player;
pub mod interleave;
pub mod machines;
pub mod model;
pub mod mutant;
pub mod play;
pub mod postgres;
pub mod postgres_player;
pub mod power_cut;
pub mod proxy;
pub mod queue;
pub mod queue_cut;
pub mod rig;
pub mod rule_player;
pub mod scale;
pub mod scenario;
pub mod server;
pub mod shards;
pub mod sql_player;
pub mod terminal;
pub mod tick_model;
pub mod tick_mutant;
pub mod ticks;
pub mod tls;
pub mod torture;
pub mod trouble;
pub mod vfs;

/// The Rust blocks of the documents, each run as a test.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/transactions.md")]
    struct Transactions;

    #[doc = include_str!("../../../docs/errors.md")]
    struct Errors;

    #[doc = include_str!("../../../docs/fencing.md")]
    struct Fencing;

    #[doc = include_str!("../../../docs/pools.md")]
    struct Pools;

    #[doc = include_str!("../../../docs/single-writer.md")]
    struct Writer;

    #[doc = include_str!("../../../docs/durability.md")]
    struct Durability;

    #[doc = include_str!("../../../docs/client.md")]
    struct Client;

    #[doc = include_str!("../../../docs/holding.md")]
    struct Holding;

    #[doc = include_str!("../../../docs/cluster.md")]
    struct Cluster;

    #[doc = include_str!("../../../docs/replicas.md")]
    struct Replicas;

    #[doc = include_str!("../../../docs/reservations.md")]
    struct Reservations;

    #[doc = include_str!("../../../docs/values.md")]
    struct Values;

    #[doc = include_str!("../../../docs/history.md")]
    struct History;

    #[doc = include_str!("../../../docs/queues.md")]
    struct Queues;

    #[doc = include_str!("../../../docs/shared-reads.md")]
    struct SharedReads;

    #[doc = include_str!("../../../docs/limits.md")]
    struct Limits;

    #[doc = include_str!("../../../docs/handoff.md")]
    struct Handoff;

    #[doc = include_str!("../../../docs/sessions.md")]
    struct Sessions;

    #[doc = include_str!("../../../docs/cron-on-several-machines.md")]
    struct Cron;

    #[doc = include_str!("../../../docs/elections.md")]
    struct Elections;

    #[doc = include_str!("../../../docs/shards.md")]
    struct Shards;

    #[doc = include_str!("../../../docs/recipes/credential.md")]
    struct CredentialRecipe;
}
