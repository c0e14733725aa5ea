//! Redis behind the same HTTP as the service: one connection, on which the requests of a batch are
//! sent together.

use std::io::{self, Write};
use std::net::SocketAddr;

use litelease_serve::Options;
use litelease_serve::bench_backend::{self, Keeper, Reply, Request};

use super::redis::{Redis, Scripts};
use crate::Result;

/// Prints its address and serves until it is killed.
pub(crate) fn run(redis: SocketAddr, slots: usize) -> Result<()> {
    let scripts = Scripts::load(redis, slots)?;
    let keeper = Pipeline { redis: Redis::open(redis)?, scripts, leases: 0 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("listening at http://{}", listener.local_addr()?);
        bench_backend::run(listener, Options::default(), keeper, std::future::pending()).await?;
        Ok(())
    })
}

struct Pipeline {
    redis: Redis,
    scripts: Scripts,
    leases: u64,
}

impl Keeper for Pipeline {
    fn commit(&mut self, requests: &[Request]) -> io::Result<Vec<Reply>> {
        let mut commands = Vec::new();
        let mut leases = Vec::with_capacity(requests.len());
        for request in requests {
            // As long as a UUID, and unique.
            let lease = format!("{:036x}", self.leases);
            match request {
                Request::Register(_) => {}
                Request::Borrow(ttl_ms) => {
                    self.leases += 1;
                    self.scripts.borrow(&mut commands, &lease, &ttl_ms.to_string());
                }
                Request::Return(lease) => self.scripts.give_back(&mut commands, lease),
            }
            leases.push(lease);
        }
        self.redis.stream.write_all(&commands)?;
        let answers = requests.iter().zip(leases).map(|(request, lease)| {
            if let Request::Register(_) = request {
                return Ok(Reply::Registered);
            }
            let answer = self.redis.receive()?;
            Ok(match (request, numbers(&answer).as_slice()) {
                (Request::Return(_), [returned]) => Reply::Returned(*returned == 1),
                (_, [position, token, ends]) => Reply::lent(lease, *position, *token, *ends),
                _ => Reply::Nothing,
            })
        });
        answers.collect()
    }
}

/// Returns the numbers in an answer, without its framing.
fn numbers(answer: &[u8]) -> Vec<i64> {
    let text = String::from_utf8_lossy(answer);
    let lines = text.lines().filter(|line| !line.starts_with(['*', '$']));
    lines.filter_map(|line| line.trim_start_matches(':').parse().ok()).collect()
}
