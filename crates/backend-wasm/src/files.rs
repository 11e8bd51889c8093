//! Files of a sandbox.

use std::sync::Arc;

use async_trait::async_trait;
use moltis_host::bridge::{consume, produce};
use moltis_host::tree::pack::pack;
use moltis_sandbox::files::{EntryStream, FileContent, TreeSummary, WriteOptions};
use moltis_sandbox::{ByteStream, Files, GuestPath, Metadata, Result};

use crate::error::Error;
use crate::sandbox::{Busy, Inner};
use crate::tree::Tree;
use crate::tree::files::{list, read};

/// Access to them, beneath the handles of a tree that is opened for each operation.
pub struct TreeFiles {
    inner: Arc<Inner>,
}

impl TreeFiles {
    /// Of this sandbox.
    pub fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Does work that blocks for a moment, or goes on in what it answers with.
    async fn on<T: Send + 'static>(
        &self,
        work: impl FnOnce(Tree, Busy) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (inner, begun) = (Arc::clone(&self.inner), self.inner.begin(false)?);
        let done = moltis_sandbox::blocking::long(move || {
            let busy = begun.hold()?;
            work(inner.tree()?, busy)
        });
        done.await.map_err(|_| Error::ShuttingDown)?
    }
}

#[async_trait]
impl Files for TreeFiles {
    async fn stat(&self, path: &GuestPath, follow: bool) -> Result<Metadata> {
        let path = path.clone();
        self.on(move |tree, _busy| tree.stat(&path, follow)).await
    }

    async fn list(&self, path: &GuestPath) -> Result<EntryStream> {
        let path = path.clone();
        self.on(move |tree, busy| {
            let (opened, over) = tree.directory(&path)?;
            Ok((opened, over, path, busy))
        })
        .await
        .map(|(opened, over, path, busy)| {
            produce(move |out| {
                let _busy = busy;
                list(opened.as_ref(), over, &path, out)
            })
        })
    }

    async fn read(&self, path: &GuestPath, offset: u64, length: Option<u64>) -> Result<FileContent> {
        let path = path.clone();
        let (opened, path, busy) = self
            .on(move |tree, busy| {
                let opened = tree.open(&path)?;
                Ok((opened, path, busy))
            })
            .await?;
        Ok(FileContent {
            metadata: opened.metadata.clone(),
            content: produce(move |out| {
                let _busy = busy;
                read(&opened, offset, length.unwrap_or(u64::MAX), &path, out)
            }),
        })
    }

    async fn write(&self, path: &GuestPath, options: WriteOptions, content: ByteStream) -> Result<Metadata> {
        let (inner, begun, path) = (Arc::clone(&self.inner), self.inner.begin(false)?, path.clone());
        consume(content, move |inflow| {
            let _busy = begun.hold()?;
            inner.tree()?.write(&path, &options, inflow)
        })
        .await
    }

    async fn mkdir(&self, path: &GuestPath, parents: bool) -> Result<()> {
        let path = path.clone();
        self.on(move |tree, _busy| tree.make_directory(&path, parents)).await
    }

    async fn remove(&self, path: &GuestPath, recursive: bool) -> Result<()> {
        let path = path.clone();
        self.on(move |tree, _busy| tree.remove(&path, recursive)).await
    }

    async fn rename(&self, from: &GuestPath, to: &GuestPath, replace: bool) -> Result<()> {
        let (from, to) = (from.clone(), to.clone());
        self.on(move |tree, _busy| tree.rename(&from, &to, replace)).await
    }

    async fn download(&self, path: &GuestPath) -> Result<ByteStream> {
        let path = path.clone();
        let (packed, busy) = self.on(move |tree, busy| Ok((tree.packed(&path)?, busy))).await?;
        Ok(produce(move |out| {
            let _busy = busy;
            pack(packed, out)
        }))
    }

    async fn upload(&self, path: &GuestPath, tar: ByteStream) -> Result<TreeSummary> {
        let (inner, begun, path) = (Arc::clone(&self.inner), self.inner.begin(false)?, path.clone());
        consume(tar, move |inflow| {
            let _busy = begun.hold()?;
            inner.tree()?.unpack(&path, inflow)
        })
        .await
    }
}
