//! The file with a secret that all hubs and workers of one user share if no other secret was chosen. The file is
//! created when it is first needed.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::credential::CredentialError;
use crate::file::read_file;
use crate::secret::Secret;

/// The longest file with secrets that is read, in bytes.
const FILE_BYTES: u64 = 64 << 10;

/// Returns the path of the file.
pub(crate) fn path() -> Option<PathBuf> {
    Some(directory()?.join("secret"))
}

/// Returns the directory of this user's secret: `phub` in the user's directory for settings.
pub fn directory() -> Option<PathBuf> {
    let directory = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let settings = directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")))?;
    Some(settings.join("phub"))
}

/// Reads the file. Creates it first if it is missing.
pub(crate) fn read(path: &Path) -> Result<String, CredentialError> {
    let failed = |error| CredentialError::Unreadable { path: path.to_owned(), error };
    match fs::metadata(path) {
        // If the home directory is in truth a file, such as /dev/null, creating the file fails with an error
        // that names the home.
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => {
            make(path).map_err(|error| CredentialError::Unmade { path: path.to_owned(), error })?;
        }
        Err(error) => return Err(failed(error)),
        Ok(about) if about.permissions().mode() & 0o077 != 0 => {
            return Err(CredentialError::Open {
                path: path.to_owned(),
                mode: about.permissions().mode() & 0o777,
            });
        }
        Ok(_) => {}
    }
    text(path).map_err(failed)
}

/// Returns the text of a file with secrets.
///
/// # Errors
/// Returns an error if the file is a FIFO, from which a read may wait forever, or has no end, such as `/dev/zero`. The
/// pipe of a shell has no path in a directory, and can be read.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_file(path, FILE_BYTES)?).map_err(io::Error::other)
}

/// Creates the file. Several processes may create the file at the same time, also on machines that share the
/// directory. So a complete file that exists is not replaced.
fn make(path: &Path) -> io::Result<()> {
    let directory = path.parent().expect("it is in a directory");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let secret = Secret::random()?;
    // The name is unique, because it contains a random secret. That secret is not the new secret, which must not be in
    // a name.
    let own = directory.join(format!(".secret-{}", Secret::random()?.reveal()));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&own)?;
    let written = writeln!(file, "{}", secret.reveal()).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| fs::hard_link(&own, path));
    fs::remove_file(&own)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()), // another process has created it
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secrets;

    #[test]
    fn all_who_come_first_read_one_secret_and_leave_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("config/phub/secret");
        let texts: Vec<String> = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..8).map(|_| scope.spawn(|| read(&path).unwrap())).collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        });
        Secrets::from_lines(&texts[0]).unwrap();
        assert!(texts.iter().all(|text| text == &texts[0]));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// A hub formerly waited for the writer of the FIFO, and SIGTERM did not end the hub.
    #[test]
    fn a_fifo_and_a_file_without_an_end_are_no_secrets() {
        let home = tempfile::tempdir().unwrap();
        let fifo = home.path().join("secret");
        assert!(
            std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&fifo).status().unwrap().success()
        );
        let error = read(&fifo).unwrap_err().to_string();
        assert!(
            error.contains("secret") && error.contains("found a FIFO") && error.contains("give a file"),
            "{error}"
        );
        let error = text(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("found more than 65536 bytes"), "{error}");
    }

    #[test]
    fn a_home_that_is_a_file_has_no_room_for_a_secret() {
        let error = read(Path::new("/dev/null/.config/phub/secret")).unwrap_err();
        assert!(matches!(error, CredentialError::Unmade { .. }), "{error}");
    }

    #[test]
    fn a_file_that_others_may_read_holds_no_secret() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("secret");
        read(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("644") && error.contains("chmod 600"), "{error}");
    }
}
