//! The Python client spells fields by hand: each must be one of the calls.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use litelease_wire::{CALLS, openapi};
use serde_json::Value;

/// Returns the code of the Python client that talks to a server.
fn python() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/src/litelease");
    let mut text = String::new();
    for name in [
        "_client",
        "_client_hold",
        "_client_http",
        "_client_queue",
        "_client_ticks",
        "_client_value",
    ] {
        text += &fs::read_to_string(folder.join(name).with_extension("py")).unwrap();
    }
    text
}

/// Returns the names of all fields of requests and answers.
fn fields(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::Object(properties)) = members.get("properties") {
                found.extend(properties.keys().cloned());
            }
            members.values().for_each(|member| fields(member, found));
        }
        Value::Array(members) => members.iter().for_each(|member| fields(member, found)),
        _ => {}
    }
}

/// Returns the texts between `before` and `after` that are names.
fn between<'t>(text: &'t str, before: &'t str, after: &'t [&str]) -> BTreeSet<&'t str> {
    let is_name = |name: &&str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let parts = text.split(before).skip(1);
    let names = parts.filter_map(|part| {
        let (name, rest) = part.split_once('"')?;
        after.iter().any(|after| rest.starts_with(after)).then_some(name)
    });
    names.filter(is_name).collect()
}

#[test]
fn every_field_that_the_python_client_reads_or_sends_is_one_of_the_calls() {
    let (text, mut known) = (python(), BTreeSet::new());
    fields(&openapi(1), &mut known);
    known.extend(CALLS.iter().flat_map(|call| call.fields).map(|field| field.name.to_owned()));
    let read = between(&text, "[\"", &["]"]);
    let got = between(&text, ".get(\"", &[")", ","]);
    let mut sent = between(&text, "{\"", &[": "]);
    sent.extend(between(&text, ", \"", &[": "]));
    assert!(read.len() > 10 && got.len() > 3 && sent.len() > 3, "{read:?} {got:?} {sent:?}");
    let unknown: Vec<&str> = read
        .iter()
        .chain(&got)
        .chain(&sent)
        .filter(|name| !known.contains(**name))
        .copied()
        .collect();
    assert_eq!(unknown, [""; 0], "no call has such fields");
}

#[test]
fn the_python_client_sends_every_field_that_a_call_requires() {
    let text = python();
    // It has no call to break the lease on a slot, but one of the same last name.
    let calls = CALLS.iter().filter(|call| call.path != "/v1/slot/break");
    for call in calls.filter(|call| call.of_pool().is_none()) {
        let path = call.path.trim_start_matches("/v1/");
        let name = path.rsplit('/').next().unwrap_or(path);
        // It has no calls for operators of pools.
        let is_used = [path, name].iter().any(|name| text.contains(&format!("\"{name}\"")))
            || text.contains(&format!("/v1/{path}\""));
        for field in call.fields.iter().filter(|field| is_used && field.required) {
            let name = field.name;
            let is_sent =
                text.contains(&format!("\"{name}\":")) || text.contains(&format!("{name}="));
            assert!(is_sent, "{}: {name} is required", call.path);
        }
    }
}
