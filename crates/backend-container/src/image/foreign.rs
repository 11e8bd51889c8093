//! Images that one engine builds or fetches for another, which is given them as an archive.

use moltis_sandbox::{BuildRequest, BuildSink, ImageChoice, Images, Result};

use super::build::{self, Ready};
use super::error;
use super::progress::Teller;
use super::store::ImageStore;

impl ImageStore {
    /// The image that the first usable one of the other engines builds, loaded into this one; `None` if none is usable.
    pub(super) async fn by_others(
        &self,
        choice: &ImageChoice,
        fresh: bool,
        teller: &Teller,
    ) -> Result<Option<Ready>> {
        for other in &self.0.builders {
            if !self.is_alike(other).await? {
                continue;
            }
            teller.step(format!("building by {}", other.engine().kind()));
            let (sink, mut told) = BuildSink::channel();
            let pass_on = async {
                while let Some(progress) = told.recv().await {
                    teller.pass(progress);
                }
            };
            let request = BuildRequest { image: choice.clone(), fresh };
            let building = async {
                let built = other.build(&request, &sink).await;
                drop(sink);
                built
            };
            let (built, ()) = tokio::join!(building, pass_on);
            let tag = match built {
                Ok(built) => built.tag,
                Err(error) if build::is_absent(&error) => continue,
                Err(error) => return Err(error),
            };
            self.load_from(other, &tag, teller).await?;
            let image = self.engine().image(&tag).await?.ok_or_else(|| error::vanished(&tag))?;
            return Ok(Some(Ready { image, reference: tag, new: true }));
        }
        Ok(None)
    }

    /// Loads an image from another engine that has it; whether one has.
    pub(super) async fn load_from_others(&self, name: &str, teller: &Teller) -> Result<bool> {
        for other in &self.0.builders {
            if self.is_alike(other).await? && matches!(other.engine().image(name).await, Ok(Some(_))) {
                self.load_from(other, name, teller).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether another engine answers and has this one's architecture.
    async fn is_alike(&self, other: &Self) -> Result<bool> {
        let own = self.arch().await?;
        Ok(other.arch().await.is_ok_and(|arch| arch == own))
    }

    async fn load_from(&self, other: &Self, name: &str, teller: &Teller) -> Result<()> {
        let (from, to) = (other.engine().kind(), self.engine().kind());
        teller.step(format!("moving {name} from {from} to {to}"));
        let archive = other.engine().save(name).await?;
        Ok(self.engine().load(archive).await?)
    }
}
