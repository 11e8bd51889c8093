//! Every key of moltis.toml, once: the typed structs and the table that reads, shows and documents them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use moltis_sandbox::{BackendName, Limits, Network, Setting};

use crate::key::{Fallback, Key, Over, Section};
use crate::value::domain::Domain;
use crate::value::glob::{Glob, GlobFormat, ImageGlob};
use crate::value::image::{Image, ImageReference};
use crate::value::number::{Bool, Cores, Integer, Port, Size, Span, Vcpus};
use crate::value::path::{AbsolutePath, DataPath};
use crate::value::secret::SecretText;
use crate::value::structure::{Commands, GpusFormat, Mounts};
use crate::value::text::{Address, ContainerPrefix, HostName, LogFilter, Package, Runtime, Url, Word};
use crate::value::{Format, List, OneOf};
use crate::words::{BackendChoice, Failover, HomePersistence, Mode, MountAccess, OnUnknown, VercelRuntime};

/// The field's type, its first value, and how the table reaches it: `required` keys always have a value, `optional`
/// ones may be absent.
macro_rules! field {
    (type required $format:ty) => { Setting<<$format as Format>::Value> };
    (type optional $format:ty) => { Option<Setting<<$format as Format>::Value>> };
    (first required $default:expr) => { Setting::built_in($default) };
    (first optional $default:expr) => { None };
    (fallback required $format:ty, $default:expr) => {
        Fallback::Value(|| <$format as Format>::write(&$default))
    };
    (fallback optional $format:ty, $default:expr) => { Fallback::Words($default) };
    (set required $place:expr, $setting:expr) => { $place = $setting };
    (set optional $place:expr, $setting:expr) => { $place = Some($setting) };
    (get required $place:expr) => { Some(&$place) };
    (get optional $place:expr) => { $place.as_ref() };
}

macro_rules! aliases {
    () => {
        &[]
    };
    ($($alias:literal)+) => {
        &[$($alias),+]
    };
}

/// Declares one table. A row reads: what it is for; name; `required` or `optional`; format; the default (for
/// `optional`: in words); who may override it (E, S, F, A); plain variables that are aliases.
macro_rules! section {
    (
        #[doc = $about:literal]
        $name:ident ($prefix:literal, $config:ident => $table:expr) {
            $(
                #[doc = $help:literal]
                $field:ident: $shape:ident $format:ty = $default:expr, $over:literal $(, $alias:literal)*;
            )*
        }
        $(tables {
            $(
                #[doc = $inner_help:literal]
                $inner:ident: $inner_type:ident;
            )*
        })?
    ) => {
        #[doc = $about]
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $( #[doc = $help] pub $field: field!(type $shape $format), )*
            $($( #[doc = $inner_help] pub $inner: $inner_type, )*)?
        }

        impl $name {
            /// The table and its keys.
            pub const SECTION: Section = Section {
                path: $prefix,
                help: $about.trim_ascii(),
                keys: &[$(
                    Key {
                        path: match $prefix.is_empty() {
                            true => stringify!($field),
                            false => concat!($prefix, ".", stringify!($field)),
                        },
                        help: $help.trim_ascii(),
                        secret: <$format as Format>::SECRET,
                        over: Over::letters($over),
                        aliases: aliases!($($alias)*),
                        default: field!(fallback $shape $format, $default),
                        kind: <$format as Format>::name,
                        example: <$format as Format>::example,
                        set: |$config, raw, context, origin| {
                            let table = &mut $table;
                            let value = <$format as Format>::read(raw, context)?;
                            field!(set $shape table.$field, Setting::new(value, origin));
                            Ok(())
                        },
                        get: |$config| {
                            let table = &$table;
                            let setting = field!(get $shape table.$field)?;
                            Some((<$format as Format>::write(&setting.value), setting.origin))
                        },
                    },
                )*],
            };
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $( $field: field!(first $shape $default), )*
                    $($( $inner: $inner_type::default(), )*)?
                }
            }
        }
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

section! {
    /// Where Moltis keeps its state
    Config ("", config => *config) {
        /// Folder of everything that Moltis stores: homes, managed files, sessions, sockets; made with mode 0700
        data_dir: required AbsolutePath = PathBuf::from("~/.moltis"), "EF";
    } tables {
        /// What the tools of a model may do.
        tools: Tools;
        /// The HTTP server.
        gateway: Gateway;
    }
}

/// `[tools.…]`: what the tools of a model may do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools {
    /// Commands.
    pub exec: Exec,
    /// File tools.
    pub fs: Fs,
}

section! {
    /// Commands
    Exec ("tools.exec", config => config.tools.exec) {
        /// Time that a command may take when the caller names none, in seconds
        default_timeout_secs: required Integer<1, 1800> = 30, "FA";
        /// Bytes kept of each output stream in a collected answer (JSON, MCP, history); streams are never cut
        max_output_bytes: required Size<1, { GIB }> = 200 * KIB, "FA";
    } tables {
        /// Where commands run.
        sandbox: Sandbox;
    }
}

section! {
    /// File tools; shell commands do not obey these lists
    Fs ("tools.fs", config => config.tools.fs) {
        /// Paths that file tools may touch, at any depth without a slash in front; empty: all that the sandbox shows
        allow_paths: required List<GlobFormat> = Vec::<Glob>::new(), "";
        /// Paths that file tools never touch, at any depth without a slash in front; wins over `allow_paths`
        deny_paths: required List<GlobFormat> = Vec::<Glob>::new(), "";
    }
}

section! {
    /// Where commands run, what they see and what they may reach
    Sandbox ("tools.exec.sandbox", config => config.tools.exec.sandbox) {
        /// Whether sessions are sandboxed unless their own `sandboxEnabled` says otherwise
        mode: required OneOf<Mode> = Mode::All, "S";
        /// What holds the sandbox; `auto` is the strongest that is usable
        backend: required OneOf<BackendChoice> = BackendChoice::Auto, "ESFA";
        /// Where a session goes when its engine fails: anywhere, only to a backend that isolates files, nowhere
        failover: required OneOf<Failover> = Failover::Any, "";
        /// Let `restricted-host` run although it cannot keep the network policy that was asked for
        allow_unenforced: required Bool = false, "";
        /// Image that containers start from; in this file a base for `packages`, elsewhere a finished image
        image: required Image = ImageReference::default_base(), "ESFA";
        /// Images that API keys with `operator.write` may name; empty: any
        allowed_images: required List<ImageGlob> = Vec::<Glob>::new(), "";
        /// Packages and `@groups` that are built into the image; `[]` is none
        packages: required List<Package> = vec!["@toolbox".to_owned()], "";
        /// First part of the names of containers and images; a label decides what is ours, not the name
        container_prefix: required ContainerPrefix = "moltis".to_owned(), "";
        /// OCI runtime of docker and podman, such as `runsc` or `kata`
        runtime: optional Runtime = "the engine's own", "";
        /// GPUs of docker and podman: `all`, or their ids
        gpus: optional GpusFormat = "", "";
        /// Give the sandbox the host's Podman socket; this removes the boundary; needs `backend = "podman"`
        allow_host_podman: required Bool = false, "";
        /// Let Podman run inside the sandbox, which is then privileged; needs `backend = "podman"`
        allow_nested_podman: required Bool = false, "";
        /// The data directory as the container engine's host sees it, when Moltis itself runs in a container
        host_data_dir: optional AbsolutePath = "found by looking at our own container", "E";
        /// Relabel a user's folder for SELinux when it is mounted
        selinux_relabel: required Bool = false, "";
        /// Who keeps `/home/sandbox` when a sandbox ends: nobody, its session, or all sessions together
        home_persistence: required OneOf<HomePersistence> = HomePersistence::Shared, "";
        /// The folder behind the shared home; a relative one lies in the data directory
        shared_home_dir: required DataPath = PathBuf::from("sandbox/home/shared"), "";
        /// Size of a home over which the next command is refused
        home_quota: optional Size<{ MIB }, { u64::MAX }> = "", "";
        /// Host folder that shows at `/workspace`
        workspace: optional AbsolutePath = "", "SFA";
        /// How the workspace is mounted
        workspace_mount: required OneOf<MountAccess> = MountAccess::Ro, "SFA";
        /// What stays read-only in a writable workspace, because the host runs it later
        workspace_protect: required List<GlobFormat> = Glob::workspace_protect(), "";
        /// What of a workspace is sent to a provider though its name is that of a secret, such as `.env.test`
        workspace_upload: required List<GlobFormat> = Vec::new(), "";
        /// How managed files show at `/home/sandbox/files`
        managed_files_mount: required OneOf<MountAccess> = MountAccess::Ro, "";
        /// Further host folders and files that show inside
        mounts: required Mounts = Vec::new(), "";
        /// Root directory to use instead of the host's system folders (`namespaces`)
        rootfs: optional AbsolutePath = "the host's system folders, read-only", "";
        /// Host uid behind the sandbox's user when Moltis runs as root
        sandbox_uid: optional Integer<1, 4_294_967_294> = "the first subordinate uid, or 100000", "";
        /// What commands may reach: nothing, `trusted_domains`, everything
        network: required OneOf<Network> = Network::Blocked, "ESFA";
        /// Older form of `network`: true is `blocked`, false is `open`; ignored when `network` is set
        no_network: optional Bool = "", "";
        /// Domains that `trusted` lets through: `example.com`, `*.example.com`, `*`, with `:port` if need be
        trusted_domains: required List<Domain> = Vec::new(), "SA";
        /// Domains that `trusted` never lets through; wins over `trusted_domains`
        denied_domains: required List<Domain> = Vec::new(), "SA";
        /// What happens to a domain on neither list
        on_unknown: required OneOf<OnUnknown> = OnUnknown::Deny, "S";
        /// Time that a person has to answer when `on_unknown = "ask"`
        approval_timeout: required Span<1, 86_400> = Duration::from_secs(60), "";
        /// Time without use after which a session's sandbox ends; its home stays
        idle_ttl: required Span<1, 31_536_000> = Duration::from_secs(30 * 60), "S";
        /// Sandboxes that may exist at once; the least recently used idle one makes room
        max_sandboxes: required Integer<1, 100_000> = 64, "";
        /// Sandboxes kept ready for new sessions
        pool: required Integer<0, 1_000> = 0, "";
        /// Instructions that a WASI module may execute (`wasm`)
        wasm_fuel_limit: required Integer<1, { i64::MAX as u64 }> = 1_000_000_000, "SA";
        /// How often a running WASI module looks at its deadline, in milliseconds (`wasm`)
        wasm_epoch_interval_ms: required Integer<1, 60_000> = 100, "";
        /// WASI modules that commands may call by name (`wasm`)
        wasm_commands: required Commands = std::collections::BTreeMap::new(), "";
        /// Vercel access token
        vercel_token: optional SecretText = "", "E", "VERCEL_TOKEN", "VERCEL_OIDC_TOKEN";
        /// Vercel project that sandboxes belong to
        vercel_project_id: optional Word = "", "E", "VERCEL_PROJECT_ID";
        /// Vercel team that the project belongs to
        vercel_team_id: optional Word = "", "E", "VERCEL_TEAM_ID";
        /// Where the Vercel API answers
        vercel_api_url: required Url = "https://vercel.com/api".to_owned(), "E", "VERCEL_API_URL";
        /// What is installed in a Vercel sandbox
        vercel_runtime: required OneOf<VercelRuntime> = VercelRuntime::Node24, "";
        /// Life of a Vercel sandbox in milliseconds; extended while it is in use
        vercel_timeout_ms: required Integer<1_000, 86_400_000> = 300_000, "";
        /// Processors of a Vercel sandbox: 1 or an even number
        vercel_vcpus: required Vcpus = 2, "";
        /// Vercel snapshot that sandboxes start from
        vercel_snapshot_id: optional Word = "", "";
        /// Daytona API key
        daytona_api_key: optional SecretText = "", "E", "DAYTONA_API_KEY";
        /// Where the Daytona API answers; set it for a self-hosted one
        daytona_api_url: required Url = "https://app.daytona.io/api".to_owned(), "E", "DAYTONA_API_URL";
        /// Daytona region
        daytona_target: optional Word = "", "E", "DAYTONA_TARGET";
        /// Image (with a tag) or snapshot (without) that Daytona sandboxes start from
        daytona_image: optional Word = "", "E";
        /// The Firecracker program
        firecracker_bin: required AbsolutePath = PathBuf::from("/usr/local/bin/firecracker"), "";
        /// Uncompressed Linux kernel that Firecracker boots; modules that it needs lie beside it, in `<kernel>.modules`
        firecracker_kernel: required AbsolutePath = PathBuf::from("/opt/moltis/vmlinux"), "";
        /// Root file system (ext4) of Firecracker's machines, which only read it
        firecracker_rootfs: required AbsolutePath = PathBuf::from("/opt/moltis/rootfs.ext4"), "";
        /// Private key with which `sandbox` is let into the root file system by SSH; set, kernel and root file system are booted as they are, unset, an initrd brings the agent
        firecracker_ssh_key: required AbsolutePath = PathBuf::from("/opt/moltis/ssh_key"), "";
        /// Processors of a Firecracker machine
        firecracker_vcpus: required Integer<1, 32> = 2, "";
        /// Memory of a Firecracker machine in MiB
        firecracker_memory_mb: required Integer<64, 1_048_576> = 512, "";
    } tables {
        /// What a sandbox may use up.
        resource_limits: ResourceLimits;
    }
}

section! {
    /// What a whole sandbox may use up
    ResourceLimits ("tools.exec.sandbox.resource_limits", config => config.tools.exec.sandbox.resource_limits) {
        /// Memory, swap counted
        memory_limit: optional Size<{ MIB }, { u64::MAX }>
            = "docker, podman, namespaces: the smaller of 2G and half the host's; wasm: 512M", "ESFA";
        /// Processor time in cores; Apple Container takes whole numbers only
        cpu_quota: optional Cores = "", "ESFA";
        /// Processes and threads
        pids_max: optional Integer<1, 4_194_304> = "1024; restricted-host: 256", "ESFA";
    }
}

section! {
    /// The HTTP server
    Gateway ("gateway", config => config.gateway) {
        /// Address that it listens on
        bind: required Address = IpAddr::V4(Ipv4Addr::LOCALHOST), "EF";
        /// Port that it listens on; 0 is any
        port: required Port = 13131, "EF";
        /// Certificate chain (PEM); needs `tls_key`
        tls_cert: optional AbsolutePath = "", "";
        /// Private key (PEM); needs `tls_cert`
        tls_key: optional AbsolutePath = "", "";
        /// Names by which it is reached besides its own addresses, such as that of a proxy in front of it
        hosts: required List<HostName> = Vec::<String>::new(), "";
        /// Host folders beneath which API calls may name paths
        workspace_roots: required List<AbsolutePath> = Vec::<PathBuf>::new(), "";
        /// What is logged: a level, or `part=level` items with commas between
        log: required LogFilter = "info".to_owned(), "EF";
    }
}

/// The tables of moltis.toml, in the order of the reference.
pub const SECTIONS: [Section; 6] = [
    Config::SECTION,
    Exec::SECTION,
    Fs::SECTION,
    Sandbox::SECTION,
    ResourceLimits::SECTION,
    Gateway::SECTION,
];

/// Every key, in the order of the reference.
pub fn keys() -> impl Iterator<Item = &'static Key> {
    SECTIONS.into_iter().flat_map(|section| section.keys)
}

impl Exec {
    /// [`default_timeout_secs`](Self::default_timeout_secs) as a duration.
    pub fn default_timeout(&self) -> Setting<Duration> {
        self.default_timeout_secs.map(Duration::from_secs)
    }
}

/// Memory limit in bytes that a container or a `namespaces` sandbox gets when nobody set one: the smaller of 2 GiB
/// and half of `host_memory` (bytes).
pub fn default_memory_limit(host_memory: u64) -> u64 {
    (2 * GIB).min(host_memory / 2)
}

impl ResourceLimits {
    /// The limits of a sandbox on `backend`: what was set, and for the rest what is built in there. `host_memory` is
    /// the machine's memory in bytes.
    pub fn on(&self, backend: BackendName, host_memory: u64) -> Limits {
        let (memory, pids) = match backend {
            BackendName::Docker | BackendName::Podman | BackendName::Namespaces => {
                (Some(default_memory_limit(host_memory)), Some(1024))
            }
            BackendName::AppleContainer => (None, Some(1024)),
            BackendName::Wasm => (Some(512 * MIB), None),
            BackendName::RestrictedHost => (None, Some(256)),
            BackendName::Vercel | BackendName::Daytona | BackendName::Firecracker | BackendName::None => {
                (None, None)
            }
        };
        Limits {
            memory: self.memory_limit.or(memory.map(Setting::built_in)),
            cpus: self.cpu_quota,
            pids: self.pids_max.or(pids.map(Setting::built_in)),
        }
    }
}
