/** Types of API objects, under the console's names. */

import type { components } from "./schema";

type Schemas = components["schemas"];

export type Account = Schemas["Account"];
export type Agent = Schemas["Agent"];
export type AgentTools = NonNullable<Schemas["AgentCreate"]["tools"]>;
export type Artifact = Schemas["Artifact"];
export type Batch = Schemas["Batch"];
export type Checks = Schemas["Checks"];
export type Comparison = Schemas["VersionComparison"];
export type Credits = Schemas["Credits"];
export type Deployment = Schemas["Deployment"];
export type DeploymentEvent = Schemas["Event"];
export type DeploymentUpdate = Schemas["DeploymentUpdate"];
export type File = Schemas["File"];
export type Key = Schemas["Key"];
export type KeyWithSecret = Schemas["KeyWithSecret"];
export type Lease = Schemas["Lease"];
export type Node = Schemas["Node"];
export type NodeReplica = Schemas["NodeReplica"];
export type Price = Schemas["Price"];
export type Run = Schemas["Run"];
export type RunEvent = Schemas["RunEvent"];
export type Transfer = Schemas["Transfer"];
export type Trial = Schemas["Trial"];
export type TrialRow = Schemas["Row"];
export type Upload = Schemas["Upload"];
export type UsageRow = Required<Schemas["UsageRow"]>;
export type UsageReport = Omit<Schemas["UsageReport"], "data" | "total"> & {
  data: UsageRow[];
  total: Required<Schemas["Amounts"]>;
};
export type Version = Schemas["Version"];
export type VersionCreate = Schemas["VersionCreate"];
export type ChecksUpdate = Schemas["ChecksUpdate"];
export type DeploymentCreate = Schemas["DeploymentCreate"];
export type KeyCreate = Schemas["KeyCreate"];
export type Video = Schemas["Video"];

export interface Session {
  scope: "operator" | "account" | "deployment";
  account_id: string | null;
  deployments: string[] | null;
  csrf: string;
  expires_at: string;
}

/** Model entry that keys of any scope can list. */
export interface Model {
  id: string;
  pipeline: string;
  status: string;
  readiness: string;
}

export interface Page<T> {
  data: T[];
  first_id?: string | null;
  last_id?: string | null;
  has_more: boolean;
}

export interface Waiting {
  deployment_id: string;
  model: string;
  bytes: number;
  reason: string;
}

export interface DeploymentStats {
  requests_per_s: number;
  errors_per_s: number;
  p50_ms: number | null;
  p99_ms: number | null;
  queue: number;
  replicas: number;
  memory_bytes: number;
}

/** A graphics device. */
export interface Device {
  index: number;
  name: string;
  total_bytes: number;
  budget_bytes: number;
  held_bytes: number;
  used_bytes: number | null;
  other_bytes: number;
}

export interface Stats {
  at: number | string;
  deployments: Record<string, DeploymentStats>;
  memory: { budget_bytes: number; held_bytes: number; used_bytes: number; devices: Device[]; waiting: Waiting[] };
  credits: { balance: string | number; days_left: number | null } | null;
}

export interface Notice {
  deployment_id: string;
  model: string;
  type: string;
  message: string;
  created_at: string;
}

type Series = (number | null)[];

export interface Metrics {
  start: number;
  step_s: number;
  requests: { ok: Series; client_error: Series; server_error: Series };
  latency_ms: { p50: Series; p90: Series; p99: Series };
  queue: Series;
  batch_size: Series;
  tokens: Series;
  replicas: Series;
  memory_bytes: Series;
}

export interface Machine {
  cores: number;
  processor: string;
  memory: { total_bytes: number; budget_bytes: number; held_bytes: number; used_bytes: number; reserved_bytes: number };
  devices: Device[];
  device_problem: string;
  engines: { engine: string; available: boolean; detail: string }[];
  replicas: {
    deployment_id: string;
    model: string;
    account_id: string | null;
    status: string;
    engine: string;
    memory_bytes: number | null;
    device: string;
    device_bytes: number | null;
    device_held_bytes: number;
    started_at: string | null;
  }[];
  waiting: Waiting[];
}
