//! `moltis files` and `moltis cp`.

use std::ffi::OsString;

use clap::{Args, Subcommand, ValueHint};

/// `moltis files`.
#[derive(Subcommand)]
pub enum Files {
    /// What is in a folder
    List(FilesList),
    /// Print a file; on a terminal its control characters are shown and not obeyed
    Show(FilesShow),
    /// Copy a file or a whole folder to here
    Get(FilesGet),
    /// Copy a file or a whole folder from here
    Put(FilesPut),
    /// Make a folder
    Mkdir(FilesMkdir),
    /// Move or rename; a folder that is there receives it by its name
    Move(FilesMove),
    /// Remove files, or with -r whole folders
    Remove(FilesRemove),
}

/// Whose files, and how the answer is printed.
#[derive(Args)]
pub struct FilesFlags {
    /// Files of this session's sandbox, by their paths there, instead of the managed files
    #[arg(long, value_name = "KEY")]
    pub session: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `moltis files list`.
#[derive(Args)]
pub struct FilesList {
    /// The folder [default: all managed files; of a session, where its commands run]
    pub path: Option<OsString>,
    #[command(flatten)]
    pub flags: FilesFlags,
}

/// `moltis files show`.
#[derive(Args)]
pub struct FilesShow {
    /// The file
    pub path: OsString,
    #[command(flatten)]
    pub flags: FilesFlags,
}

/// `moltis files get`.
#[derive(Args)]
pub struct FilesGet {
    /// The file or folder
    pub path: OsString,
    /// Where it goes, `-` for standard output [default: here, by its name]
    #[arg(value_hint = ValueHint::AnyPath)]
    pub local: Option<OsString>,
    /// Replace files that are there, and merge folders
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub flags: FilesFlags,
}

/// `moltis files put`.
#[derive(Args)]
pub struct FilesPut {
    /// The file or folder here, `-` for standard input
    #[arg(value_hint = ValueHint::AnyPath)]
    pub local: OsString,
    /// Where it goes [default: among all managed files, by its name; of a session, where its commands run]
    #[arg(required_if_eq("local", "-"))]
    pub path: Option<OsString>,
    /// Replace files that are there, and merge folders
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub flags: FilesFlags,
}

/// `moltis files mkdir`.
#[derive(Args)]
pub struct FilesMkdir {
    /// The folder
    pub path: OsString,
    /// Make missing folders above it too; one that is there is no error
    #[arg(long, short)]
    pub parents: bool,
    #[command(flatten)]
    pub flags: FilesFlags,
}

/// `moltis files move`.
#[derive(Args)]
pub struct FilesMove {
    /// What is moved
    pub from: OsString,
    /// Its new path, or a folder that receives it
    pub to: OsString,
    /// Replace a file that is there
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub flags: FilesFlags,
}

/// `moltis files remove`.
#[derive(Args)]
pub struct FilesRemove {
    /// What is removed
    #[arg(required = true)]
    pub paths: Vec<OsString>,
    /// Remove folders with all that is in them
    #[arg(long, short)]
    pub recursive: bool,
    #[command(flatten)]
    pub flags: FilesFlags,
}

/// `moltis cp`.
#[derive(Args)]
#[command(
    override_usage = "moltis cp [OPTIONS] KEY:/PATH LOCAL\n       moltis cp [OPTIONS] LOCAL KEY:/PATH",
    after_help = "\
KEY is a session that is there already. An argument is split at its first `:/`, unless it begins with `/`, `./` or \
`../`; for a key that cannot be written so, give --session KEY and write the path as `:/PATH`. `-` is standard input or \
output, for one file.

As with `cp -r`, a folder that is there receives the source by its name, and of `FOLDER/.` only what is in it is copied. \
Links are copied as links, one that SOURCE names too unless -L is given; permissions are kept, setuid bits and devices are not. Unlike with `cp`, nothing that is \
there is replaced unless --overwrite is given: then files are replaced and folders merged.

Examples:
  moltis cp build:/workspace/report.pdf .
  moltis cp ./data build:/home/sandbox
  tar -c src | moltis cp - build:/tmp/src.tar"
)]
pub struct Cp {
    /// What is copied
    #[arg(value_name = "SOURCE", value_hint = ValueHint::AnyPath)]
    pub from: OsString,
    /// Where it goes
    #[arg(value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    pub to: OsString,
    /// The session, whose paths are then written as `:/PATH`
    #[arg(long, value_name = "KEY")]
    pub session: Option<OsString>,
    /// Replace files that are there, and merge folders
    #[arg(long)]
    pub overwrite: bool,
    /// Of a link that SOURCE names, copy what it leads to
    #[arg(long, short = 'L')]
    pub follow: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
