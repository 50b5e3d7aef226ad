// Types and calls of the API. The Go package plugins/restapi/localapi describes the fields.

export type State = 'held' | 'infra' | 'cooling' | 'quarantined' | 'reserved' | 'excluded' | 'free' | 'draining' | 'other' | 'otherHeld' | 'otherUnknown'

export type Counts = Partial<Record<State | 'recent', number>>

export interface Root {
  prefix: string
  blocks: number
  counts: Counts
}
export interface Pool {
  name: string
  counts: Counts
  roots: Root[]
}
export interface AddressMap {
  scope: 'node' | 'cluster'
  node: string
  taken: string
  pools: Pool[]
  more?: number
}

export interface Lease {
  ip: string
  state: string
  purpose?: string
  pod?: string
  container?: string
  ifName?: string
  since?: string
  reason?: string
}
export interface Cell extends Counts {
  cell: number
  node?: string
  blocks?: number
  lease?: Lease
}
export interface Block {
  prefix: string
  node: string
  own: boolean
  state: string
  counts: Counts
}
export interface Part {
  pool: string
  prefix: string
  taken: string
  cellLen: number
  counts: Counts
  cells: Cell[]
  blocks: Block[]
  more?: number
  occupied?: string
}

export interface Hit {
  kind: string
  text: string
  pool: string
  prefix: string
  state?: string
  pod?: string
  node?: string
}
export interface Hits {
  hits: Hit[]
  more: boolean
  problem?: string
}

export interface Change {
  number: number
  time: string
  action: string
  pool: string
  ip?: string
  block?: string
  podNamespace?: string
  podName?: string
  containerID?: string
  reason?: string
}
export interface Changes {
  until: string
  minutes: { claimed: number; released: number; other: number }[]
  recent: Change[]
  cut: boolean
  recorded: boolean
  decisions?: Decision[]
}
// Decision counts those of an operator with the same text.
export interface Decision {
  by: string
  name: string
  count: number
  failed: number
  last: string
}

export interface Finding {
  number: string
  name: string
  text: string
  fix: string
  evidence: { witness: string; text: string }[]
  subject: { addr?: string; prefix?: string; pool?: string; node?: string }
}
export interface Findings {
  report?: { findings: Finding[]; taken?: string; leases: number }
  cluster?: { state: string; problem?: string; findings: Finding[] | null; total: number; compared: string[] | null; leftOut: string[] | null; at: string }
  error?: string
}

export interface Branch {
  text: string
  because?: Branch[] | null
}
export interface Tree {
  subject: string
  answer: string
  because: Branch[] | null
  fix?: { command: string; text: string }[]
}

// Status has leading of an operator only.
export interface Status {
  version: string
  ready: boolean
  readyError?: string
  suspended?: string
  leading?: boolean
}

export interface Handler {
  Handler: string
  Revert: boolean
  Change?: string
  Error?: string
  Duration: number
}
export interface EventRecord {
  SeqNum: number
  Name: string
  Description: string
  ProcessingStart: string
  ProcessingEnd: string
  Handlers: Handler[] | null
  Error?: string
  CommitError?: string
  TxnError?: string
  Note?: string
  Subject?: { Pod?: string; Container?: string; Pool?: string; Addresses?: string[] }
}

const base = new URL('..', document.baseURI)

export function address(path: string, args: Record<string, string> = {}): string {
  const url = new URL(`v1/${path}`, base)
  for (const [name, value] of Object.entries(args)) url.searchParams.set(name, value)
  return url.toString()
}

// underway counts the requests for the map. The next look waits for their answers, so that
// a slow server is not asked more often than it answers.
export const underway = { n: 0 }

export class NotServed extends Error {}

// get asks the server. An answer that is not 200 is an error with the server's text.
export async function get<T>(path: string, args: Record<string, string> = {}, signal?: AbortSignal): Promise<T> {
  const counted = path === 'map' ? 1 : 0
  underway.n += counted
  try {
    return await exchange<T>(path, args, signal)
  } finally {
    underway.n -= counted
  }
}

async function exchange<T>(path: string, args: Record<string, string>, signal?: AbortSignal): Promise<T> {
  const answer = await fetch(address(path, args), { signal })
  if (answer.ok) return (await answer.json()) as T
  const text = await answer.text()
  let reason = text
  try {
    reason = (JSON.parse(text) as { error: string }).error
  } catch {
    // the text itself
  }
  if (answer.status === 404 || answer.status === 501) throw new NotServed(reason)
  throw new Error(`${path}: ${reason}`)
}
