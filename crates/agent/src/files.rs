//! Files through the agent: one connection for each operation, content streamed in both directions.

mod incoming;
mod outgoing;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use async_trait::async_trait;
use moltis_agent_protocol::message::{
    ByteString, Entry as WireEntry, EntryKind as WireKind, FileRequest, Metadata as WireMetadata, Reply,
    Request,
};
use moltis_sandbox::files::{EntryStream, FileContent, TreeSummary, WriteOptions};
use moltis_sandbox::{ByteStream, Entry, EntryKind, Files, GuestPath, Metadata};

use crate::client::{Connection, Patience};
use crate::error::{Error, Result, Subject};
use crate::transport::Transport;
use incoming::{Content, Listing};

/// Longest name of an entry in bytes: the kernel's `NAME_MAX`.
const MAX_NAME: usize = 255;

/// File access by an agent.
pub(crate) struct AgentFiles {
    transport: Arc<dyn Transport>,
    patience: Patience,
}

impl AgentFiles {
    pub(crate) fn new(transport: Arc<dyn Transport>, patience: Patience) -> Self {
        Self { transport, patience }
    }

    async fn open(&self, request: FileRequest) -> Result<Connection> {
        Connection::open(&*self.transport, &Request::File(request), self.patience).await
    }

    async fn done(&self, request: FileRequest) -> Result<()> {
        self.open(request).await?.done(Subject::File).await
    }
}

fn wire(path: &GuestPath) -> ByteString {
    ByteString::from(path.as_bytes())
}

#[async_trait]
impl Files for AgentFiles {
    async fn stat(&self, path: &GuestPath, follow: bool) -> moltis_sandbox::Result<Metadata> {
        let mut connection = self.open(FileRequest::Stat { path: wire(path), follow }).await?;
        Ok(metadata_of(connection.answer(Subject::File).await?)?)
    }

    async fn list(&self, path: &GuestPath) -> moltis_sandbox::Result<EntryStream> {
        let mut connection = self.open(FileRequest::List { path: wire(path) }).await?;
        // The first answer says whether there is a listing at all.
        let first = connection.answer(Subject::File).await?;
        Ok(Box::pin(Listing::new(connection, first)?))
    }

    async fn read(
        &self,
        path: &GuestPath,
        offset: u64,
        length: Option<u64>,
    ) -> moltis_sandbox::Result<FileContent> {
        let mut connection = self.open(FileRequest::Read { path: wire(path), offset, length }).await?;
        let metadata = metadata_of(connection.answer(Subject::File).await?)?;
        Ok(FileContent { metadata, content: Box::pin(Content::new(connection)) })
    }

    async fn write(
        &self,
        path: &GuestPath,
        options: WriteOptions,
        content: ByteStream,
    ) -> moltis_sandbox::Result<Metadata> {
        let WriteOptions { mode, overwrite, parents } = options;
        let connection = self.open(FileRequest::Write { path: wire(path), mode, overwrite, parents }).await?;
        Ok(metadata_of(outgoing::send(connection, content).await?)?)
    }

    async fn mkdir(&self, path: &GuestPath, parents: bool) -> moltis_sandbox::Result<()> {
        Ok(self.done(FileRequest::Mkdir { path: wire(path), parents }).await?)
    }

    async fn remove(&self, path: &GuestPath, recursive: bool) -> moltis_sandbox::Result<()> {
        Ok(self.done(FileRequest::Remove { path: wire(path), recursive }).await?)
    }

    async fn rename(&self, from: &GuestPath, to: &GuestPath, replace: bool) -> moltis_sandbox::Result<()> {
        Ok(self.done(FileRequest::Rename { from: wire(from), to: wire(to), replace }).await?)
    }

    async fn download(&self, path: &GuestPath) -> moltis_sandbox::Result<ByteStream> {
        let mut connection = self.open(FileRequest::Download { path: wire(path) }).await?;
        connection.done(Subject::File).await?;
        Ok(Box::pin(Content::new(connection)))
    }

    async fn upload(&self, path: &GuestPath, tar: ByteStream) -> moltis_sandbox::Result<TreeSummary> {
        let connection = self.open(FileRequest::Upload { path: wire(path) }).await?;
        match outgoing::send(connection, tar).await? {
            Reply::Unpacked { entries, bytes } => Ok(TreeSummary { entries, bytes }),
            _ => Err(Error::unexpected("instead of an unpacked archive").into()),
        }
    }
}

fn metadata_of(reply: Reply) -> Result<Metadata> {
    match reply {
        Reply::Metadata(found) => metadata(found),
        _ => Err(Error::unexpected("instead of metadata")),
    }
}

fn metadata(found: WireMetadata) -> Result<Metadata> {
    if found.target.as_ref().is_some_and(|target| target.len() > GuestPath::MAX_BYTES || target.contains(&0))
    {
        return Err(Error::Protocol("a link to what cannot be a path".to_owned()));
    }
    Ok(Metadata {
        kind: match found.kind {
            WireKind::File => EntryKind::File,
            WireKind::Directory => EntryKind::Directory,
            WireKind::Symlink => EntryKind::Symlink,
            WireKind::Other => EntryKind::Other,
        },
        size: found.size,
        mode: found.mode & 0o7777,
        modified_nanos: found.modified_nanos,
        uid: found.uid,
        gid: found.gid,
        target: found.target.map(|target| OsString::from_vec(target.into_vec())),
    })
}

/// An entry whose name can be one: whoever joins it to a path stays in that directory.
fn entry(found: WireEntry) -> Result<Entry> {
    let name = found.name.into_vec();
    let is_name = !name.is_empty()
        && name.len() <= MAX_NAME
        && !name.contains(&b'/')
        && !name.contains(&0)
        && name != b"."
        && name != b"..";
    if !is_name {
        return Err(Error::Protocol("an entry whose name cannot be one".to_owned()));
    }
    Ok(Entry { name: OsString::from_vec(name), metadata: metadata(found.metadata)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &[u8]) -> WireEntry {
        WireEntry {
            name: ByteString::from(name),
            metadata: WireMetadata {
                kind: WireKind::File,
                size: 0,
                mode: 0o100644,
                modified_nanos: 0,
                uid: 0,
                gid: 0,
                target: None,
            },
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        assert_eq!(entry(named(b"\xff ok")).unwrap().metadata.mode, 0o644);
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", &[b'x'; 256]] {
            assert!(matches!(entry(named(name)), Err(Error::Protocol(_))));
        }
        let mut link = named(b"l");
        link.metadata.target = Some(ByteString::from(vec![b'x'; 5000]));
        assert!(matches!(entry(link), Err(Error::Protocol(_))));
    }
}
