//! What a release needs: one version everywhere, and manifests that say where the project lives.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::project::{read, root, tracked};

/// The manifests of the crates that are published.
fn published() -> Vec<String> {
    let manifests = tracked("crates/*/Cargo.toml").into_iter();
    manifests.filter(|manifest| !read(manifest).contains("publish = false")).collect()
}

#[test]
fn every_published_crate_says_where_it_lives_and_carries_its_licences() {
    let crates = published();
    assert!(crates.len() > 10, "{crates:?}");
    for manifest in crates {
        let text = read(&manifest);
        for field in ["repository", "homepage", "documentation", "license", "rust-version"] {
            assert!(text.contains(&format!("{field}.workspace = true\n")), "{manifest}: {field}");
        }
        assert!(text.contains("readme = \"README.md\"\n"), "{manifest}: readme");
        let folder = root().join(&manifest).with_file_name("");
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
            assert!(text.len() > 50, "{manifest}: {file} is missing");
        }
    }
}

#[test]
fn the_python_package_names_the_same_address_as_the_crates() {
    let manifest = read("Cargo.toml");
    let address = manifest.split_once("\nrepository = ").unwrap().1.lines().next().unwrap();
    assert!(read("python/pyproject.toml").contains(&format!("\nHomepage = {address}\n")));
}

/// A copy of everything that is tracked, to change it.
fn copy_of_the_project(folder: &Path) {
    for file in tracked(".") {
        let to = folder.join(&file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(root().join(&file), to).unwrap();
    }
}

fn script(folder: &Path, words: &[&str]) -> Output {
    Command::new(folder.join(words[0])).args(&words[1..]).output().unwrap()
}

#[test]
fn one_script_raises_the_version_everywhere() {
    let copy = tempfile::tempdir().unwrap();
    let folder = copy.path();
    copy_of_the_project(folder);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(script(folder, &["scripts/set-version"]).stdout, format!("{version}\n").as_bytes());
    assert_eq!(script(folder, &["scripts/set-version", "one"]).status.code(), Some(64));

    let raised = script(folder, &["scripts/set-version", "7.8.9"]);
    assert!(raised.status.success(), "{raised:?}");
    assert_eq!(script(folder, &["scripts/set-version"]).stdout, b"7.8.9\n");
    // Cargo finds no crate of the workspace at another version than its lock file says.
    let mut tree = Command::new(env!("CARGO"));
    let tree = tree.args(["tree", "--locked", "--offline", "--workspace", "--depth", "0"]);
    let tree = tree.current_dir(folder).output().unwrap();
    let crates = String::from_utf8(tree.stdout).unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let own = crates.lines().filter(|line| line.starts_with("litelease"));
    let own: Vec<&str> = own.filter(|line| !line.contains("litelease-doctest")).collect();
    assert!(own.len() > 10 && own.iter().all(|line| line.contains(" v7.8.9 ")), "{own:?}");

    // Any other place that names the version of a litelease crate, or shows it, was raised, too.
    let short = version.rsplit_once('.').unwrap().0;
    for file in tracked(".").iter().filter(|file| !file.starts_with("CHANGELOG")) {
        let Ok(text) = fs::read_to_string(folder.join(file)) else { continue };
        let mut before = "";
        for line in text.lines() {
            let names_it = [version, short].iter().any(|old| line.contains(&format!("\"{old}\"")));
            let is_ours = before.contains("\"litelease") || line.starts_with("litelease");
            assert!(!(names_it && is_ours), "{file}: {line}");
            assert!(!line.starts_with(&format!("Version {short},")), "{file}: {line}");
            before = line;
        }
    }
}

#[test]
fn a_release_is_refused_unless_tag_version_and_changelog_agree() {
    let copy = tempfile::tempdir().unwrap();
    let folder = copy.path();
    copy_of_the_project(folder);
    let version = env!("CARGO_PKG_VERSION");
    let check = |tag: &str| {
        let output = script(folder, &["scripts/check-release", tag]);
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (passes, said) = check("v99.0.0");
    assert!(!passes && said.contains("is not v"), "{said}");

    let changelog = folder.join("CHANGELOG.md");
    let unreleased = format!("# Changelog\n\n## {version} (not released)\n- Something.\n");
    fs::write(&changelog, &unreleased).unwrap();
    let (passes, said) = check(&format!("v{version}"));
    assert!(!passes && said.contains("is not released"), "{said}");

    fs::write(&changelog, "# Changelog\n\n## 99.0.0\n- Something.\n").unwrap();
    let (passes, said) = check(&format!("v{version}"));
    assert!(!passes && said.contains("has no heading"), "{said}");

    fs::write(&changelog, unreleased.replace(" (not released)", " (2027-01-02)")).unwrap();
    let (passes, said) = check(&format!("v{version}"));
    assert!(passes, "{said}");
    assert_eq!(fs::read_to_string(folder.join("dist/notes.md")).unwrap(), "- Something.\n");
}
