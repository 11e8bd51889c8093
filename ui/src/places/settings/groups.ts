// Which settings stand together.

const S = 'tools.exec.sandbox.';

export interface Group {
  title: string;
  about?: string;
  keys: readonly string[];
}

export const GROUPS: Record<string, readonly Group[]> = {
  sandboxes: [
    {
      title: 'Where commands run',
      about: 'what a session gets that sets nothing itself',
      keys: [`${S}mode`, `${S}backend`, `${S}failover`],
    },
    {
      title: 'Image',
      about: 'what containers start from',
      keys: [`${S}image`, `${S}packages`, `${S}allowed_images`, `${S}runtime`],
    },
    {
      title: 'Home and folders',
      about: 'what outlives a sandbox, and what of the host shows inside',
      keys: [
        `${S}home_persistence`,
        `${S}shared_home_dir`,
        `${S}home_quota`,
        `${S}managed_files_mount`,
        `${S}workspace`,
        `${S}workspace_mount`,
        `${S}workspace_protect`,
        `${S}mounts`,
      ],
    },
    {
      title: 'Limits',
      about: 'of a whole sandbox, and of each command',
      keys: [
        `${S}resource_limits.memory_limit`,
        `${S}resource_limits.cpu_quota`,
        `${S}resource_limits.pids_max`,
        'tools.exec.default_timeout_secs',
        'tools.exec.max_output_bytes',
      ],
    },
    {
      title: 'How long, and how many',
      keys: [`${S}idle_ttl`, `${S}max_sandboxes`, `${S}pool`],
    },
  ],
  network: [
    {
      title: 'What commands may reach',
      about: 'sessions can be given more or less',
      keys: [`${S}network`, `${S}trusted_domains`, `${S}denied_domains`, `${S}on_unknown`, `${S}approval_timeout`],
    },
  ],
};

export interface Provider {
  id: 'vercel' | 'daytona';
  title: string;
  about: string;
  secret: string;
  keys: readonly string[];
}

export const PROVIDERS: readonly Provider[] = [
  {
    id: 'vercel',
    title: 'Vercel',
    about: 'needs a token and a project',
    secret: `${S}vercel_token`,
    keys: [
      `${S}vercel_project_id`,
      `${S}vercel_team_id`,
      `${S}vercel_runtime`,
      `${S}vercel_timeout_ms`,
      `${S}vercel_vcpus`,
      `${S}vercel_snapshot_id`,
      `${S}vercel_api_url`,
    ],
  },
  {
    id: 'daytona',
    title: 'Daytona',
    about: 'needs an API key',
    secret: `${S}daytona_api_key`,
    keys: [`${S}daytona_target`, `${S}daytona_image`, `${S}daytona_api_url`],
  },
];
