//! Redis behind the same HTTP as the service: one connection, on which all that was asked meanwhile is sent together.

use std::io::{self, Write};
use std::net::SocketAddr;

use litelease_serve::Options;
use litelease_serve::seam::{self, Ask, Keeper, Told};

use super::redis::{Redis, Scripts};
use crate::Result;

/// Serves until it is killed, and says where.
pub(crate) fn run(redis: SocketAddr, slots: usize) -> Result<()> {
    let scripts = Scripts::load(redis, slots)?;
    let keeper = Pipeline { redis: Redis::open(redis)?, scripts, leases: 0 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("listening at http://{}", listener.local_addr()?);
        seam::run(listener, Options::default(), keeper, std::future::pending()).await?;
        Ok(())
    })
}

struct Pipeline {
    redis: Redis,
    scripts: Scripts,
    leases: u64,
}

impl Keeper for Pipeline {
    fn commit(&mut self, asked: &[Ask]) -> io::Result<Vec<Told>> {
        let mut requests = Vec::new();
        let mut leases = Vec::with_capacity(asked.len());
        for ask in asked {
            // As long as a UUID, and never the same twice.
            let lease = format!("{:036x}", self.leases);
            match ask {
                Ask::Register(_) => {}
                Ask::Borrow(ttl_ms) => {
                    self.leases += 1;
                    self.scripts.borrow(&mut requests, &lease, &ttl_ms.to_string());
                }
                Ask::Return(lease) => self.scripts.give_back(&mut requests, lease),
            }
            leases.push(lease);
        }
        self.redis.stream.write_all(&requests)?;
        let answers = asked.iter().zip(leases).map(|(ask, lease)| {
            if let Ask::Register(_) = ask {
                return Ok(Told::Registered);
            }
            let answer = self.redis.receive()?;
            Ok(match (ask, numbers(&answer).as_slice()) {
                (Ask::Return(_), [returned]) => Told::Returned(*returned == 1),
                (_, [position, token, ends]) => Told::lent(lease, *position, *token, *ends),
                _ => Told::Nothing,
            })
        });
        answers.collect()
    }
}

/// The numbers in an answer, without what frames them.
fn numbers(answer: &[u8]) -> Vec<i64> {
    let text = String::from_utf8_lossy(answer);
    let lines = text.lines().filter(|line| !line.starts_with(['*', '$']));
    lines.filter_map(|line| line.trim_start_matches(':').parse().ok()).collect()
}
