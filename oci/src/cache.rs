use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use super::{byte_lru::ByteLru, reference::Digest};

/// Blobs in memory, and optionally in a folder. Returned blobs match their digest.
#[derive(Debug)]
pub(super) struct BlobCache {
    memory: Mutex<ByteLru<Digest, Arc<[u8]>>>,
    disk: Option<Arc<Disk>>,
}

#[derive(Debug)]
struct Disk {
    folder: PathBuf,
    budget: u64,
    writes: AtomicU64,
}

impl BlobCache {
    pub(super) fn new(memory_budget: u64, disk: Option<PathBuf>, disk_budget: u64) -> Self {
        let disk =
            disk.map(|folder| Arc::new(Disk { folder, budget: disk_budget, writes: AtomicU64::new(0) }));
        Self { memory: Mutex::new(ByteLru::new(memory_budget)), disk }
    }

    /// Never blocks.
    pub(super) fn in_memory(&self, digest: &Digest) -> Option<Arc<[u8]>> {
        self.memory.lock().get(digest).cloned()
    }

    /// Reads a verified file. Removes damaged files, and ignores files above `limit`.
    pub(super) async fn on_disk(&self, digest: &Digest, limit: u64) -> Option<Arc<[u8]>> {
        let disk = Arc::clone(self.disk.as_ref()?);
        let wanted = digest.clone();
        let bytes: Arc<[u8]> =
            tokio::task::spawn_blocking(move || disk.read(&wanted, limit)).await.ok().flatten()?.into();
        self.remember(digest, &bytes);
        Some(bytes)
    }

    /// Stores verified bytes. A failed write costs only speed, so it is logged.
    pub(super) async fn store(&self, digest: &Digest, bytes: &Arc<[u8]>) {
        self.remember(digest, bytes);
        let Some(disk) = self.disk.clone() else { return };
        let (digest, bytes) = (digest.clone(), Arc::clone(bytes));
        let written = tokio::task::spawn_blocking(move || disk.write(&digest, &bytes)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "the layer cache folder cannot be written; layers are downloaded again");
        }
    }

    fn remember(&self, digest: &Digest, bytes: &Arc<[u8]>) {
        self.memory.lock().insert(digest.clone(), Arc::clone(bytes), bytes.len() as u64);
    }
}

impl Disk {
    fn blobs(&self) -> PathBuf {
        self.folder.join("sha256")
    }

    fn read(&self, digest: &Digest, limit: u64) -> Option<Vec<u8>> {
        let path = self.blobs().join(digest.hex());
        if fs::metadata(&path).ok()?.len() > limit {
            return None;
        }
        let bytes = fs::read(&path).ok()?;
        if Digest::of(&bytes) == *digest {
            return Some(bytes);
        }
        tracing::warn!(%digest, "a damaged file of the layer cache is removed and downloaded again");
        let _ = fs::remove_file(&path);
        None
    }

    fn write(&self, digest: &Digest, bytes: &[u8]) -> std::io::Result<()> {
        let blobs = self.blobs();
        fs::create_dir_all(&blobs)?;
        let target = blobs.join(digest.hex());
        // Readers must not get partial files; other processes and downloads may write, too.
        let unique = self.writes.fetch_add(1, Ordering::Relaxed);
        let partial = blobs.join(format!("{}.{}.{unique}.partial", digest.hex(), std::process::id()));
        let mut file = fs::File::create(&partial)?;
        let moved = file.write_all(bytes).and_then(|()| fs::rename(&partial, &target));
        if moved.is_err() {
            let _ = fs::remove_file(&partial);
        }
        moved?;
        self.trim(&target)
    }

    fn trim(&self, keep: &Path) -> std::io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(self.blobs())? {
            let entry = entry?;
            // Another writer may have removed it.
            let Ok(data) = entry.metadata() else { continue };
            files.push((data.modified()?, data.len(), entry.path()));
        }
        files.sort();
        let mut used: u64 = files.iter().map(|(_, size, _)| size).sum();
        for (_, size, path) in files {
            if used <= self.budget {
                break;
            }
            if path != keep && fs::remove_file(&path).is_ok() {
                used -= size;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(folder: &Path, memory: u64, disk: u64) -> BlobCache {
        BlobCache::new(memory, Some(folder.to_owned()), disk)
    }

    fn blob(text: &str) -> (Digest, Arc<[u8]>) {
        (Digest::of(text.as_bytes()), text.as_bytes().into())
    }

    #[tokio::test]
    async fn a_new_process_finds_the_blob_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let (digest, bytes) = blob("content");
        cache(folder.path(), 100, 100).store(&digest, &bytes).await;
        let again = cache(folder.path(), 100, 100);
        assert!(again.in_memory(&digest).is_none());
        assert_eq!(again.on_disk(&digest, 100).await.unwrap(), bytes);
        assert_eq!(again.in_memory(&digest).unwrap(), bytes);
        assert!(cache(folder.path(), 100, 100).on_disk(&digest, 3).await.is_none(), "over the limit");
    }

    #[tokio::test]
    async fn damaged_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (digest, bytes) = blob("content");
        cache(folder.path(), 0, 100).store(&digest, &bytes).await;
        let path = folder.path().join("sha256").join(digest.hex());
        fs::write(&path, "c0ntent").unwrap();
        assert!(cache(folder.path(), 0, 100).on_disk(&digest, 100).await.is_none());
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn the_folder_keeps_its_budget_and_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 0, 10);
        let blobs = ["aaaaaa", "bbbbbb", "cccccc"].map(blob);
        for (digest, bytes) in &blobs {
            cache.store(digest, bytes).await;
        }
        assert!(cache.on_disk(&blobs[2].0, 100).await.is_some());
        let files = fs::read_dir(folder.path().join("sha256")).unwrap().count();
        assert_eq!(files, 1);
    }
}
