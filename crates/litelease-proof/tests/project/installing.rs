//! Installing the command: `make install`, `cargo install`, the .deb and the tarball, in folders of
//! their own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use litelease_proof::rig::{PLANTED, litelease, report};
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A command of the project's own, without what the surrounding build has put into the environment.
fn project(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    for variable in ["PREFIX", "DESTDIR", "BINARY", "DIST", "MAKEFLAGS", "MAKELEVEL", "SUDO_USER"] {
        command.env_remove(variable);
    }
    command
}

#[track_caller]
fn printed(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{errors}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn run(command: &mut Command) -> String {
    printed(command.output().unwrap_or_else(|error| panic!("{command:?}: {error}")))
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// All files below a folder, relative to it and sorted.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(inner) = open.pop() {
        for entry in fs::read_dir(inner).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => open.push(path),
                false => {
                    let relative = path.strip_prefix(folder).unwrap();
                    found.push(relative.to_str().unwrap().to_owned());
                }
            }
        }
    }
    found.sort();
    found
}

/// The command works: it tells its version, claims and shows what it has claimed.
#[track_caller]
fn works(program: &Path) {
    let version = format!("litelease {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(Command::new(program).arg("--version")), version);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("leases.sqlite3");
    let command = |words: &[&str]| run(Command::new(program).arg("--db").arg(&file).args(words));
    assert_eq!(command(&["claim", "x"]), "1\n");
    assert!(command(&["status"]).contains('x'));
}

fn make(target: &str, destination: &Path, prefix: &str) -> Command {
    let mut make = project("make");
    make.arg(target).arg(format!("DESTDIR={}", destination.display()));
    make.arg(format!("PREFIX={prefix}")).arg(format!("BINARY={}", litelease().display()));
    make
}

#[test]
fn the_extension_is_taken_from_where_cargo_has_built_it() {
    let folder = TempDir::new().unwrap();
    let (target, dist) = (folder.path().join("built"), folder.path().join("dist"));
    fs::create_dir_all(target.join("release")).unwrap();
    fs::write(target.join("release/liblitelease_ext.so"), "the extension").unwrap();
    let dist_ext = |platform: &[&str]| {
        let mut script = project("scripts/dist-ext");
        run(script.args(platform).env("CARGO_TARGET_DIR", &target).env("DIST", &dist))
    };
    let told = dist_ext(&[]);
    let copy = told.trim();
    assert!(copy.starts_with(dist.to_str().unwrap()), "{told}");
    assert_eq!(fs::read_to_string(copy).unwrap(), "the extension");
    run(Command::new("sha256sum").arg("-c").arg(format!("{copy}.sha256")).current_dir(&dist));

    // One for another platform is named after that, and not after this machine.
    let elsewhere = target.join("aarch64-unknown-linux-musl/release");
    fs::create_dir_all(&elsewhere).unwrap();
    fs::write(elsewhere.join("liblitelease_ext.so"), "for musl").unwrap();
    let told = dist_ext(&["linux-musl-arm64"]);
    assert!(told.ends_with("/litelease-extension-linux-musl-arm64.so\n"), "{told}");
    assert_eq!(fs::read_to_string(told.trim()).unwrap(), "for musl");
}

/// Checks only that the compiler accepts it: that costs seconds, and needs no linker.
#[test]
fn the_calls_of_the_system_compile_for_other_systems() {
    let sysroot = run(Command::new("rustc").args(["--print", "sysroot"]));
    for target in ["aarch64-apple-darwin", "x86_64-unknown-freebsd"] {
        if !Path::new(sysroot.trim()).join("lib/rustlib").join(target).exists() {
            report(&format!("SKIPPED: compiling for {target}: rustup target add {target}"));
            continue;
        }
        let mut cargo = project(env!("CARGO"));
        cargo.args(["check", "-q", "--locked", "-p", "litelease-sys", "--target", target]);
        run(cargo.args(PLANTED));
    }
}

#[test]
fn make_install_puts_the_command_its_pages_and_completions_below_the_prefix() {
    let folder = TempDir::new().unwrap();
    let destination = folder.path().join("a folder");
    run(&mut make("install", &destination, "/opt/tools"));
    let prefix = destination.join("opt/tools");
    works(&prefix.join("bin/litelease"));

    let installed = files(&prefix);
    for file in [
        "bin/litelease",
        "share/bash-completion/completions/litelease",
        "share/fish/vendor_completions.d/litelease.fish",
        "share/man/man1/litelease.1",
        "share/man/man1/litelease-run.1",
        "share/man/man1/litelease-restore-fence.1",
        "share/zsh/site-functions/_litelease",
    ] {
        assert!(installed.iter().any(|installed| installed == file), "{file}: {installed:?}");
    }
    for file in &installed {
        let metadata = fs::metadata(prefix.join(file)).unwrap();
        let wanted = if file == "bin/litelease" { 0o755 } else { 0o644 };
        assert_eq!(metadata.permissions().mode() & 0o777, wanted, "{file}");
        assert!(metadata.len() > 0, "{file}");
    }
    every_command_has_a_page(&prefix);
    completions_load(&prefix);

    // What is not ours stays.
    let other = prefix.join("share/man/man1/liteleaseother.1");
    fs::write(&other, "").unwrap();
    run(&mut make("uninstall", &destination, "/opt/tools"));
    assert_eq!(files(&destination), ["opt/tools/share/man/man1/liteleaseother.1"]);
}

#[track_caller]
fn every_command_has_a_page(prefix: &Path) {
    let pages = prefix.join("share/man/man1");
    let main = fs::read_to_string(pages.join("litelease.1")).unwrap().replace('\\', "");
    let named: Vec<&str> = main
        .lines()
        .filter_map(|line| line.strip_suffix("(1)"))
        .filter(|it| !it.contains(' '))
        .collect();
    assert!(named.len() > 15, "{named:?}");
    for name in named {
        assert!(pages.join(format!("{name}.1")).exists(), "{name}");
    }
    if !is_installed("man") {
        return report("SKIPPED: formatting the manual pages, because man is missing");
    }
    for page in files(&pages) {
        let mut man = Command::new("man");
        man.args(["--warnings", "-l"]).arg(pages.join(&page)).env("MANWIDTH", "80");
        let output = man.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(errors, "", "{page}");
        assert!(printed(output).contains("SYNOPSIS"), "{page}");
    }
}

#[track_caller]
fn completions_load(prefix: &Path) {
    let bash = prefix.join("share/bash-completion/completions/litelease");
    let mut shell = Command::new("bash");
    shell.args(["-c", "source \"$1\" && complete -p litelease", "bash"]).arg(bash);
    assert!(run(&mut shell).ends_with("litelease\n"));
    let zsh = prefix.join("share/zsh/site-functions/_litelease");
    let fish = prefix.join("share/fish/vendor_completions.d/litelease.fish");
    for (shell, file) in [("zsh", zsh), ("fish", fish)] {
        match is_installed(shell) {
            true => drop(run(Command::new(shell).arg("-n").arg(file))),
            false => report(&format!("SKIPPED: the completions of {shell}, which is missing")),
        }
    }
}

#[test]
fn make_install_refuses_what_it_cannot_install() {
    let folder = TempDir::new().unwrap();
    for (prefix, binary, words) in [
        ("usr", litelease(), "PREFIX must begin with /"),
        ("/usr", folder.path().join("no such program"), "no such program"),
    ] {
        let mut make = project("make");
        make.arg("install").arg(format!("DESTDIR={}", folder.path().display()));
        make.arg(format!("PREFIX={prefix}")).arg(format!("BINARY={}", binary.display()));
        let output = make.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(words), "{errors}");
        assert_eq!(files(folder.path()), [""; 0]);
    }
}

#[test]
fn cargo_install_from_the_folder_works() {
    let folder = TempDir::new().unwrap();
    let target = litelease().ancestors().nth(2).unwrap().to_owned();
    let mut cargo = project(env!("CARGO"));
    // In the debug profile, so that what was built for the tests is taken.
    cargo.args([
        "install",
        "-q",
        "--path",
        "crates/litelease-cli",
        "--locked",
        "--debug",
        "--no-track",
    ]);
    run(cargo.args(PLANTED).arg("--root").arg(folder.path()).arg("--target-dir").arg(target));
    works(&folder.path().join("bin/litelease"));
}

fn dist(what: &str, folder: &Path, binary: &Path) -> Command {
    let mut dist = project("scripts/dist");
    dist.arg(what).env("DIST", folder).env("BINARY", binary);
    dist
}

#[test]
fn the_deb_installs_and_leaves_without_a_trace() {
    if !is_installed("dpkg-deb") || !is_installed("strip") {
        return report("SKIPPED: the .deb, because dpkg-deb or strip is missing");
    }
    let folder = TempDir::new().unwrap();
    run(&mut dist("deb", folder.path(), &litelease()));
    let made = files(folder.path());
    let [deb, sum] = &made[..] else { panic!("{made:?}") };
    assert!(deb.starts_with("litelease_") && *sum == format!("{deb}.sha256"), "{made:?}");
    run(Command::new("sha256sum").args(["-c", sum]).current_dir(folder.path()));
    let deb = folder.path().join(deb);
    let field = |name: &str| run(Command::new("dpkg-deb").arg("-f").arg(&deb).arg(name));
    assert_eq!(field("Version").trim(), env!("CARGO_PKG_VERSION"));
    assert!(field("Depends").starts_with("libc6 (>= 2."), "{}", field("Depends"));

    let system = folder.path().join("system");
    for inner in ["info", "updates", "triggers"] {
        fs::create_dir_all(system.join("var/lib/dpkg").join(inner)).unwrap();
    }
    fs::write(system.join("var/lib/dpkg/status"), "").unwrap();
    let dpkg = |words: &[&str]| {
        let mut dpkg = Command::new("dpkg");
        // There is no glibc in there: the program runs with that of this system.
        dpkg.arg(format!("--root={}", system.display())).arg("--force-depends").args(words);
        dpkg.output().unwrap()
    };
    if !is_root() {
        return report("SKIPPED: installing the .deb into a folder, which only root may do");
    }
    printed(dpkg(&["-i", deb.to_str().unwrap()]));
    works(&system.join("usr/bin/litelease"));
    for file in [
        "usr/share/man/man1/litelease-run.1.gz",
        "usr/share/bash-completion/completions/litelease",
        "usr/share/zsh/vendor-completions/_litelease",
        "usr/share/fish/vendor_completions.d/litelease.fish",
        "usr/share/doc/litelease/copyright",
        "usr/share/doc/litelease/changelog.gz",
    ] {
        assert!(system.join(file).exists(), "{file}");
    }
    let unit = system.join("usr/share/doc/litelease/examples/litelease.service");
    let unit = fs::read_to_string(unit).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/litelease serve"), "{unit}");
    assert!(!unit.contains("/usr/local") && !unit.contains("make "), "{unit}");
    printed(dpkg(&["-P", "litelease"]));
    assert!(!system.join("usr/bin/litelease").exists());
    assert!(!files(&system).iter().any(|file| file.starts_with("usr")), "{:?}", files(&system));
}

fn is_root() -> bool {
    run(Command::new("id").arg("-u")).trim() == "0"
}

#[test]
fn a_program_that_needs_libraries_gets_into_no_tarball() {
    if !is_installed("readelf") {
        return report("SKIPPED: the tarball, because readelf is missing");
    }
    let folder = TempDir::new().unwrap();
    let output = dist("tarball", folder.path(), &litelease()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("is not static"), "{errors}");
    assert_eq!(files(folder.path()), [""; 0]);
}

/// Compiles everything once more, statically: only with LITELEASE_DIST=1. `make dist` itself
/// unpacks the tarball and claims with its program, as root where there is nothing else.
#[test]
fn make_dist_makes_everything_with_checksums() {
    if std::env::var_os("LITELEASE_DIST").is_none() {
        return;
    }
    let folder = TempDir::new().unwrap();
    run(project("make").arg("dist").env("DIST", folder.path()));
    let made = files(folder.path());
    assert_eq!(made.len(), 6, "{made:?}");
    for sum in made.iter().filter(|file| file.ends_with(".sha256")) {
        run(Command::new("sha256sum").args(["-c", sum]).current_dir(folder.path()));
    }
    let tarball = made.iter().find(|file| file.ends_with(".tar.gz")).unwrap();
    run(Command::new("tar")
        .args(["-xzf", tarball, "--strip-components=1"])
        .current_dir(folder.path()));
    works(&folder.path().join("bin/litelease"));
}

/// The script itself installs the wheel where there is no Rust, and claims.
#[test]
fn the_python_wheel_is_for_every_python_of_the_platform_and_installs_without_rust() {
    if !root().join("target/python/system/bin/python").exists() {
        return report("SKIPPED: the wheel, because no Python was prepared");
    }
    let folder = TempDir::new().unwrap();
    let told = run(project("scripts/python-wheel").env("DIST", folder.path()));
    assert!(told.contains("has installed it, and claimed token 1"), "{told}");
    let made = files(folder.path());
    let [wheel] = &made[..] else { panic!("{made:?}") };
    let (name, machine) =
        (concat!("litelease-", env!("CARGO_PKG_VERSION")), std::env::consts::ARCH);
    let platform = wheel.strip_prefix(&format!("{name}-py3-none-"));
    let platform = platform.and_then(|rest| rest.strip_suffix(".whl")).unwrap_or_default();
    let is_linux = platform.starts_with("manylinux_2_") || platform.starts_with("linux_");
    assert!(!cfg!(target_os = "linux") || is_linux && platform.ends_with(machine), "{wheel}");
}

#[test]
fn a_first_build_shows_what_it_does_and_a_later_one_is_one_line() {
    let folder = TempDir::new().unwrap();
    let build = |command: &str| {
        let mut build = project("scripts/build");
        build.args(["building the rule", command, "-p", "litelease-core"]);
        let output = build.env("CARGO_TARGET_DIR", folder.path()).output().unwrap();
        let told = String::from_utf8(output.stderr.clone()).unwrap();
        printed(output);
        told
    };
    let first = build("build");
    assert!(first.starts_with("==> building the rule: the first time"), "{first}");
    assert!(first.contains("two to four minutes"), "{first}");
    assert!(first.contains("Compiling litelease-core"), "{first}");
    assert_eq!(build("build"), "==> building the rule\n");
    // Another step compiles everything once more, and is not silent either.
    let other = build("check");
    assert!(
        other.contains("the first time") && other.contains("Checking litelease-core"),
        "{other}"
    );
    assert_eq!(build("check"), "==> building the rule\n");

    // Everything that make compiles is announced so.
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    for line in makefile.lines().filter(|line| line.starts_with('\t')) {
        let hidden = ["cargo build", "cargo clippy", "cargo doc"];
        assert!(!hidden.iter().any(|cargo| line.contains(cargo)), "{line}");
    }
    for target in ["run", "test"] {
        let plan = run(project("make").args(["-n", target]));
        let steps: Vec<&str> = plan.lines().filter(|line| line.contains("scripts/build")).collect();
        assert!(!steps.is_empty(), "{plan}");
    }
    let plan = run(project("make").args(["-n", "test"]));
    assert!(plan.starts_with("echo \"make test: "), "{plan}");
    assert!(plan.lines().nth(1).unwrap().contains("minutes"), "{plan}");
}

/// `make run` was three minutes of compiling, most of it for engines that a first look does not
/// use.
#[test]
fn a_first_look_is_built_quickly_and_released_programs_have_everything() {
    let plan = |target: &str| run(project("make").args(["-n", target]));
    let step = |target: &str| {
        let is_build = |line: &&str| line.contains("scripts/build") && line.contains("-cli");
        plan(target).lines().find(is_build).unwrap_or_default().to_owned()
    };
    assert!(step("run").contains(" --profile quick ") && step("run") == step("demo"));
    assert!(step("run").ends_with(" --no-default-features"));
    assert!(plan("demo").contains("quick/litelease demo"));
    assert!(step("build-cli").ends_with(" build --release -p litelease-cli"));
    for script in ["scripts/install", "scripts/dist"] {
        let text = fs::read_to_string(root().join(script)).unwrap();
        assert!(text.contains("build-cli") && !text.contains("quick"), "{script}");
    }
}
