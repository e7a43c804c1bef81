//! `phub-server certificate`: makes a self-signed certificate for the control port.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;
use pbox_core::control::check_address;
use rcgen::{CertificateParams, DnType, KeyPair};

use crate::out::line;

/// Settings of `phub-server certificate`.
///
/// Use this for a first try, and in clusters without a certificate authority:
///
///   phub-server certificate --out tls --name hub.example
///
///   phub-server serve --listen 0.0.0.0:7077 --tls-cert tls/hub.crt --tls-key tls/hub.key
///
///   PHUB_TLS_FINGERPRINT=... python train.py
///
/// Workers trust the certificate in one of two ways: by its fingerprint, which this command prints, or by a copy of hub.crt
/// that PHUB_TLS_CA names. Workers that trust a fingerprint check neither the hub's name nor dates.
#[derive(Clone, Debug, Parser)]
pub struct CertificateArgs {
    /// Directory for the new files hub.crt and hub.key: neither file may exist. Default: the directory of this user's
    /// secret, ~/.config/phub.
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,

    /// Names and addresses by which workers reach the hub, with commas between them. Workers with PHUB_TLS_CA refuse a hub
    /// that they reach by another name. Default: localhost, and this machine's name and addresses.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = name)]
    name: Vec<String>,
}

impl CertificateArgs {
    /// Makes the two files, and prints the fingerprint.
    ///
    /// # Errors
    /// Returns an error if the files exist already, or cannot be written.
    pub fn run(&self) -> anyhow::Result<()> {
        let own = authority::own_directory().context("neither HOME nor XDG_CONFIG_HOME is set; give --out");
        let out = self.out.clone().map_or(own, Ok)?;
        let names = if self.name.is_empty() { of_this_machine()? } else { self.name.clone() };
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names.clone())?;
        params.distinguished_name.push(DnType::CommonName, "a parameter hub");
        let certificate = params.self_signed(&key)?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&out)
            .with_context(|| out.display().to_string())?;
        let (of_key, of_certificate) = (out.join("hub.key"), out.join("hub.crt"));
        write(&of_key, 0o600, &key.serialize_pem())?;
        write(&of_certificate, 0o644, &certificate.pem())?;
        line(format_args!("certificate: {} (for {})", of_certificate.display(), names.join(", ")))?;
        line(format_args!("key:         {} (keep it secret)", of_key.display()))?;
        line(format_args!("fingerprint: {}", authority::fingerprint(certificate.der())))
    }
}

/// Parses the name or the address of a host. Refuses other texts, such as a name with a port. Removes brackets around
/// an IPv6 address, because addresses in certificates have no brackets.
fn name(text: &str) -> Result<String, String> {
    let text = text.trim();
    let name = text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(text);
    let of_a_host = name.strip_prefix("*.").unwrap_or(name);
    match name.parse::<IpAddr>().is_ok() || check_address(&format!("{of_a_host}:1")).is_ok() {
        true => Ok(name.to_owned()),
        false => Err("expected a host name or an address, like hub.example or 10.0.0.1".into()),
    }
}

fn of_this_machine() -> anyhow::Result<Vec<String>> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut names = vec!["localhost".to_owned(), name];
    names.extend(if_addrs::get_if_addrs()?.iter().map(|interface| interface.ip().to_string()));
    names.dedup();
    Ok(names)
}

fn write(path: &Path, mode: u32, text: &str) -> anyhow::Result<()> {
    let made = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = made.with_context(|| format!("cannot make {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("writing {}", path.display()))
}
