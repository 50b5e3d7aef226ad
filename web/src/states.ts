import type { Counts, State } from './api'

export interface Look {
  state: State
  label: string
  texture: 'solid' | 'stripes' | 'dots' | 'cross' | 'checks' | 'lines' | 'plain'
}

// looks lists the states in the order in which a cell stacks them, from the bottom. Each
// has a colour (--STATE in style.css) and a texture, so that neither is needed alone.
export const looks: Look[] = [
  { state: 'held', label: 'held', texture: 'solid' },
  { state: 'infra', label: "the node's own", texture: 'lines' },
  { state: 'quarantined', label: 'quarantined', texture: 'checks' },
  { state: 'cooling', label: 'cooling', texture: 'stripes' },
  { state: 'excluded', label: 'excluded', texture: 'cross' },
  { state: 'reserved', label: 'reserved', texture: 'dots' },
  { state: 'draining', label: 'draining', texture: 'stripes' },
  { state: 'free', label: 'free', texture: 'plain' },
  { state: 'otherHeld', label: 'held on another node', texture: 'lines' },
  { state: 'other', label: 'of another node', texture: 'plain' },
  { state: 'otherUnknown', label: 'of another node, use not known here', texture: 'dots' },
]

// shares splits counts so that no address is counted twice: other has those of otherHeld and otherUnknown.
export function shares(c: Counts): { look: Look; n: number }[] {
  return looks
    .map((look) => ({ look, n: (c[look.state] ?? 0) - (look.state === 'other' ? (c.otherHeld ?? 0) + (c.otherUnknown ?? 0) : 0) }))
    .filter((s) => s.n > 0)
}

export function total(c: Counts): number {
  return shares(c).reduce((sum, s) => sum + s.n, 0)
}

// used counts the addresses that have an owner or had one a moment ago.
export function used(c: Counts): number {
  return (c.held ?? 0) + (c.infra ?? 0) + (c.cooling ?? 0) + (c.quarantined ?? 0) + (c.otherHeld ?? 0)
}

// own counts the addresses of the blocks of this node.
export function own(c: Counts): number {
  return total(c) - (c.other ?? 0)
}

// pods counts the addresses of the blocks of this node that pods have, and those that pods can have, as the command line does.
export function pods(c: Counts): { busy: number; whole: number } {
  return {
    busy: (c.held ?? 0) + (c.cooling ?? 0) + (c.quarantined ?? 0),
    whole: own(c) - (c.infra ?? 0) - (c.reserved ?? 0),
  }
}

export function number(n: number): string {
  if (n < 1e6) return n.toLocaleString('en')
  if (n < 1e9) return `${(n / 1e6).toFixed(1)} M`
  return `2^${Math.round(Math.log2(n))}`
}

export function percent(part: number, whole: number): string {
  if (whole === 0) return '0 %'
  const p = (100 * part) / whole
  if (p > 0 && p < 0.1) return '< 0.1 %'
  return `${p.toFixed(p < 10 ? 1 : 0)} %`
}

export function words(c: Counts): string {
  return (
    shares(c)
      .map((s) => `${number(s.n)} ${s.look.label}`)
      .join(', ') || 'not granted to a node'
  )
}
