//! Facts and warnings for operators of an etcd.

use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::engine::{EngineFacts, Error, Result};
use crate::etcd::engine::{EtcdEngine, RANGE};
use crate::etcd::messages::{
    Empty, HashKvRequest, HashKvResponse, MemberListResponse, RangeRequest, RangeResponse,
    StatusResponse,
};

const HASH_KV: &str = "/etcdserverpb.Maintenance/HashKV";

/// How many changes are kept by an etcd that never compacts, at least.
const UNCOMPACTED: i64 = 100_000;
/// The part of the default quota of 2 GB that makes a warning.
const LARGE: i64 = 1 << 30;
/// The clock skew of this machine that makes a warning.
const SKEW: Duration = Duration::from_secs(10);

impl EtcdEngine {
    pub(crate) fn inspect_members(&self) -> Result<EngineFacts> {
        let mut found = EngineFacts::default();
        let mut fact = |word: &str, value: String| found.facts.push((word.to_owned(), value));
        let mut warnings = Vec::new();
        fact("engine", "etcd".into());
        let (mut revision, mut revisions) = (0, Vec::new());
        let (mut failure, mut answering) = (None, None);
        for (number, member) in self.client.members().iter().enumerate() {
            let status = "/etcdserverpb.Maintenance/Status";
            let status: StatusResponse = match self.client.ask(number, status, Empty {}) {
                Ok(status) => status,
                Err(error) => {
                    warnings.push(format!("{} does not answer: {error}", member.host));
                    failure = Some(error);
                    continue;
                }
            };
            answering = answering.or(Some(number));
            let reached = status.header.as_ref().map_or(0, |header| header.revision);
            revision = reached.max(revision);
            revisions.push((number, reached));
            let (size, used) = (status.db_size >> 20, status.db_size_in_use >> 20);
            let is_leader = if status.leader == 0 { ", no leader" } else { "" };
            let text = format!("etcd {}, {size} MiB, {used} in use{is_leader}", status.version);
            fact(&member.host, text);
            warnings.extend(warnings_of(&member.host, &status));
        }
        let Some(answering) = answering else {
            return Err(failure.unwrap_or_else(|| Error::Unreachable("there is no member".into())));
        };
        if let Some(voting) = self.voting_members(answering) {
            fact("members", voting.to_string());
            if voting < 3 {
                warnings.push(format!(
                    "this cluster has {voting} voting member(s): three survive the loss of one"
                ));
            }
        }
        if revision > UNCOMPACTED && !self.is_compacted(answering, revision - UNCOMPACTED)? {
            warnings.push(format!(
                "the last {UNCOMPACTED} changes and more are kept: start etcd with \
                 --auto-compaction-retention=1h, because every renewal adds some 300 bytes"
            ));
        }
        warnings.extend(self.difference(&revisions));
        match self.clock_difference(answering) {
            Some(ahead) if ahead > SKEW => warnings.push(format!(
                "this clock and that of {} are {} s apart: set them (NTP)",
                self.client.members()[answering].host,
                ahead.as_secs()
            )),
            Some(_) => fact("clocks", format!("less than {} s apart", SKEW.as_secs())),
            None => fact("clocks", "not compared".into()),
        }
        found.warnings = warnings;
        Ok(found)
    }

    /// Returns how many members vote, if this one knows its cluster.
    fn voting_members(&self, member: usize) -> Option<usize> {
        let list: MemberListResponse =
            self.client.ask(member, "/etcdserverpb.Cluster/MemberList", Empty {}).ok()?;
        let voting = list.members.iter().filter(|member| !member.is_learner).count();
        (!list.members.is_empty()).then_some(voting)
    }

    /// Compares the rows of the members at the newest revision that all of them have reached, and
    /// names two that differ.
    fn difference(&self, revisions: &[(usize, i64)]) -> Option<String> {
        let revision = revisions.iter().map(|(_, revision)| *revision).min()?;
        let hash = |member: usize| -> Option<HashKvResponse> {
            self.client.ask(member, HASH_KV, HashKvRequest { revision }).ok()
        };
        let mut hashes = revisions.iter().filter_map(|(member, _)| Some((*member, hash(*member)?)));
        let (first, expected) = hashes.next()?;
        // Where one member has compacted more than another one, the hashes say nothing.
        let differs = |hash: &HashKvResponse| {
            hash.compact_revision == expected.compact_revision && hash.hash != expected.hash
        };
        let (other, _) = hashes.find(|(_, hash)| differs(hash))?;
        let host = |member: usize| &self.client.members()[member].host;
        Some(format!(
            "{} and {} differ at revision {revision}: the members have diverged, or are not of one cluster, so a \
             name may be granted twice; remove and add again the member that is wrong",
            host(first),
            host(other)
        ))
    }

    /// Checks whether a member says that it has compacted a revision.
    fn is_compacted(&self, member: usize, revision: i64) -> Result<bool> {
        let key = self.keys.floor();
        let at = RangeRequest { key, revision, count_only: true, ..RangeRequest::default() };
        match self.client.ask::<_, RangeResponse>(member, RANGE, at) {
            Err(Error::Unreachable(text)) if text.contains("compacted") => Ok(true),
            answer => answer.map(|_| false),
        }
    }

    /// Returns how far this clock and that of a member are apart, if it shows its clock: etcd
    /// speaks HTTP at the same port.
    fn clock_difference(&self, member: usize) -> Option<Duration> {
        let host = self.client.members()[member].host.clone();
        let asked = async move {
            let asked = timeout(Duration::from_secs(1), async {
                let mut stream = TcpStream::connect(&host).await.ok()?;
                let request = format!("GET /version HTTP/1.0\r\nHost: {host}\r\n\r\n");
                stream.write_all(request.as_bytes()).await.ok()?;
                let mut text = String::new();
                stream.take(4096).read_to_string(&mut text).await.ok()?;
                let line =
                    text.lines().find(|line| line.to_ascii_lowercase().starts_with("date:"))?;
                httpdate::parse_http_date(line.split_once(':')?.1.trim()).ok()
            });
            asked.await.ok().flatten()
        };
        let theirs = self.client.run(asked).ok().flatten()?;
        let ours = SystemTime::now();
        ours.duration_since(theirs).or_else(|_| theirs.duration_since(ours)).ok()
    }
}

/// Returns the warnings about one member.
fn warnings_of(host: &str, status: &StatusResponse) -> Vec<String> {
    let mut warnings = Vec::new();
    if is_known_bad(&status.version) {
        warnings.push(format!(
            "{host} is etcd {}: 3.5.0 to 3.5.2 let members diverge after a crash, so that a name may be granted \
             twice; update to 3.5.3 or newer",
            status.version
        ));
    }
    if status.is_learner {
        warnings.push(format!("{host} is a learner: name voting members"));
    }
    if status.db_size > LARGE {
        warnings.push(format!(
            "{host} has {} MiB: the quota is 2 GiB by default, and beyond it nothing is stored",
            status.db_size >> 20
        ));
    }
    warnings.extend(status.errors.iter().map(|error| format!("{host}: {error}")));
    warnings
}

/// Checks whether members of this version may diverge.
fn is_known_bad(version: &str) -> bool {
    ["3.5.0", "3.5.1", "3.5.2"].contains(&version)
}

#[cfg(test)]
mod tests {
    use super::is_known_bad;

    #[test]
    fn versions_whose_members_may_diverge_are_known() {
        let bad: Vec<&str> =
            ["3.4.23", "3.5.0", "3.5.1", "3.5.2", "3.5.3", "3.5.20", "3.6.0"].into();
        let bad: Vec<&str> = bad.into_iter().filter(|version| is_known_bad(version)).collect();
        assert_eq!(bad, ["3.5.0", "3.5.1", "3.5.2"]);
    }
}
