//! `litelease lease`: the verbs on one lease that are needed less often.

mod ensure;
mod progress;
mod request;
mod take_over;
mod transfer;

subcommands! {
    /// Ensure, hand over, ask for or take over a lease
    Ensure in ensure,
    Transfer in transfer,
    Request in request,
    TakeOver in take_over,
    Progress in progress,
}
