//! Every scenario file, played by every Rust surface, and by rules with planted bugs.

use litelease_proof::crate_player::{CratePlayer, Mode};
use litelease_proof::hosted_player::HostedPlayer;
use litelease_proof::http_player::HttpPlayer;
use litelease_proof::mutant::*;
use litelease_proof::play::{Player, Tally, play};
use litelease_proof::rig::{extension, report};
use litelease_proof::rule_player::RulePlayer;
use litelease_proof::scenario::{self, Scenario};
use litelease_proof::sql_player::SqlPlayer;
use litelease_proof::tick_mutant::*;

/// Plays all files. The outcome goes straight to the terminal, because a test that passes prints
/// nothing.
fn check<P: Player>(surface: &str, new_player: impl Fn() -> P) -> Tally {
    let scenarios = scenario::all().unwrap();
    let mut tally = Tally::default();
    let failures: Vec<String> = scenarios
        .iter()
        .filter_map(|scenario| play(scenario, &mut new_player(), &mut tally).err())
        .collect();
    let files = scenarios.len();
    report(&format!("{surface}: {files} scenario files, {tally}"));
    assert!(failures.is_empty(), "{surface}:\n{}", failures.join("\n"));
    assert!(tally.played > 0);
    tally
}

#[test]
fn the_pure_rule_plays_all_scenarios() {
    check("rule", || RulePlayer::new(TheRule));
}

#[test]
fn the_crate_plays_all_scenarios_in_autocommit() {
    check("crate, autocommit", || CratePlayer::new(Mode::Autocommit).unwrap());
}

#[test]
fn the_crate_plays_all_scenarios_in_transactions() {
    check("crate, transaction", || CratePlayer::new(Mode::Transaction).unwrap());
}

#[test]
fn the_crate_plays_all_scenarios_in_nested_savepoints() {
    check("crate, savepoint", || CratePlayer::new(Mode::Savepoint).unwrap());
}

#[test]
fn the_crate_plays_all_scenarios_on_a_borrowed_connection() {
    check("crate, borrowed", || CratePlayer::new(Mode::Borrowed).unwrap());
}

#[test]
fn the_sql_functions_play_all_scenarios() {
    check("SQL functions, registered", || SqlPlayer::new(None));
}

#[test]
fn the_loadable_extension_plays_all_scenarios() {
    let extension = extension();
    check("SQL functions, loaded", || SqlPlayer::new(Some(extension.clone())));
}

#[test]
fn a_store_whose_statements_a_host_runs_plays_all_scenarios() {
    let tally = check("hosted", HostedPlayer::new);
    assert!(tally.played > 700, "{tally}");
}

#[test]
fn the_service_plays_all_scenarios() {
    let tally = check("HTTP", HttpPlayer::new);
    assert!(tally.played > 750, "only {} steps were played", tally.played);
}

/// How many scenario files notice a bug.
fn noticed_by<R: Rules>(new_rules: impl Fn() -> R) -> usize {
    let notices = |scenario: &&Scenario| {
        play(scenario, &mut RulePlayer::new(new_rules()), &mut Tally::default()).is_err()
    };
    scenario::all().unwrap().iter().filter(notices).count()
}

#[test]
fn the_scenarios_notice_every_planted_bug() {
    assert_eq!(noticed_by(|| TheRule), 0);
    for (bug, files) in [
        ("live at the instant of expiry", noticed_by(|| LiveAtExpiry)),
        ("token not raised", noticed_by(|| TokenNotRaised)),
        ("renew revives", noticed_by(|| RenewRevives)),
        ("release by anyone", noticed_by(|| ReleaseByAnyone)),
        ("busy writes", noticed_by(|| BusyWrites)),
        ("a renewal begins a grant", noticed_by(|| RenewBegins)),
        ("the next grant of an owner is the same", noticed_by(|| SameOwnerGoesOn)),
        ("transfer keeps the token", noticed_by(|| TransferKeepsToken)),
        ("break keeps the token", noticed_by(|| BreakKeepsToken)),
        ("an exact form ignores the token", noticed_by(|| ExactIgnored)),
        ("the floor is ignored", noticed_by(|| FloorIgnored)),
        ("a takeover of another grant", noticed_by(|| TakesOverAnyGrant)),
        ("a takeover by the owner text alone", noticed_by(|| TakesOverSameOwner)),
        ("a takeover keeps the token", noticed_by(|| TakeoverKeepsToken)),
        ("another slot than the lowest", noticed_by(|| LowestSkipped)),
        ("a smaller pool lends more than it has", noticed_by(|| ShrunkPoolLends)),
        ("the floor is ignored by pools", noticed_by(|| SlotFloorIgnored)),
        ("the token of a slot is not raised", noticed_by(|| SlotTokenNotRaised)),
        ("a slot is live at the instant of expiry", noticed_by(|| SlotLiveAtExpiry)),
        ("a renewal revives a slot", noticed_by(|| SlotRenewRevives)),
        ("a renewal shortens a slot", noticed_by(|| SlotRenewShortens)),
        ("a kept slot expires", noticed_by(|| KeptSlotExpires)),
        ("keeping revives a slot", noticed_by(|| KeepRevives)),
        ("a read under a writer", noticed_by(|| ReadUnderWriter)),
        ("a read prolonged under a writer", noticed_by(|| ReadProlongedUnderWriter)),
        ("reading again shortens", noticed_by(|| ReadShortens)),
        ("drained with readers", noticed_by(|| DrainedWithReaders)),
        ("drained for any writer", noticed_by(|| DrainedForAnyWriter)),
        ("a deleted pool forgets its tokens", noticed_by(|| DeleteForgets)),
        ("an acknowledgement ignores the receipt", noticed_by(|| AckIgnoresReceipt)),
        ("a receipt returns", noticed_by(|| ReceiptReturns)),
        ("the last receipt never passes", noticed_by(|| LastReceiptNeverPasses)),
        ("a dead item is delivered", noticed_by(|| DeadDelivered)),
        ("one attempt too many", noticed_by(|| OneAttemptTooMany)),
        ("a key outlives its item", noticed_by(|| KeyOutlivesItem)),
        ("an extension revives a delivery", noticed_by(|| ExtendRevives)),
        ("an extension shortens a delivery", noticed_by(|| ExtendShortens)),
        ("giving back revives", noticed_by(|| GiveBackRevives)),
        ("a redriven item keeps its attempts", noticed_by(|| RedriveCounts)),
        ("an item in work is cancelled", noticed_by(|| CancelTakes)),
        ("ensure renews a stranger's lease", noticed_by(|| EnsureRenewsAnyones)),
        ("ensure makes a new token", noticed_by(|| EnsureRaisesToken)),
        ("ensure shortens", noticed_by(|| EnsureShortens)),
        ("ensure ignores limits and requests", noticed_by(|| EnsureIgnoresConditions)),
        ("a value outlives its grant", noticed_by(|| ValueOutlivesGrant)),
        ("a value of the grant before", noticed_by(|| ValueOfPredecessor)),
        ("a value after the end", noticed_by(|| AttachAfterTheEnd)),
        ("a renewal past the end", noticed_by(|| RenewPastTheEnd)),
        ("a renewal without progress", noticed_by(|| RenewWithoutProgress)),
        ("limits outlive their grant", noticed_by(|| LimitsOutliveGrant)),
        ("an end cuts a lease", noticed_by(|| EndCutsLease)),
        ("progress of anybody", noticed_by(|| ProgressOfZombie)),
        ("a request is ignored", noticed_by(|| RequestIgnored)),
        ("a request never lapses", noticed_by(|| RequestNeverLapses)),
        ("a request outlives its grant", noticed_by(|| RequestOutlivesGrant)),
        ("a request cuts a lease", noticed_by(|| RequestCutsLease)),
        ("a second request wins", noticed_by(|| SecondRequestWins)),
        ("repeating puts the end off", noticed_by(|| RepeatProlongs)),
        ("handed to a lapsed requester", noticed_by(|| HandsOverToLapsed)),
        ("handed over by anyone", noticed_by(|| HandOverByAnyone)),
        ("taking over keeps the token", noticed_by(|| TakeOverKeepsToken)),
        ("a bare lease in the place of a tick", noticed_by(|| TickByLeaseAlone)),
        ("attempts per caller", noticed_by(|| AttemptsPerCaller)),
        ("attempts that are not counted", noticed_by(|| AttemptsNotCounted)),
        ("a transfer without the tick", noticed_by(|| TransferForgetsTick)),
        ("a purge with the tick", noticed_by(|| PurgeForgetsTick)),
        ("a skip that lowers", noticed_by(|| SkipLowers)),
        ("a zombie finishes a tick", noticed_by(|| FinishByZombie)),
        ("finishing asks the clock", noticed_by(|| FinishByClock)),
        ("busy before taken", noticed_by(|| BusyBeforeTaken)),
        ("a tick of the future is granted", noticed_by(|| FutureGranted)),
        ("a tick opened again keeps its token", noticed_by(|| AgainKeepsToken)),
    ] {
        report(&format!("planted bug, {bug}: noticed by {files} scenario files"));
        assert!(files >= 2, "{bug} is noticed by {files} files");
    }
}

#[test]
fn an_outside_folder_without_scenarios_is_an_error_and_not_a_silent_pass() {
    let empty = tempfile::tempdir().unwrap();
    let error = scenario::folder(empty.path()).unwrap_err();
    assert!(error.reason.contains("no *.lease file"), "{error}");
}
