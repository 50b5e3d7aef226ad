// Arithmetic on addresses and prefixes of both families.

export interface Prefix {
  addr: bigint
  len: number
  bits: 32 | 128
}

export function parseAddr(text: string): { addr: bigint; bits: 32 | 128 } {
  if (!text.includes(':')) {
    return { addr: text.split('.').reduce((a, b) => (a << 8n) | BigInt(b), 0n), bits: 32 }
  }
  const [head, tail] = text.split('::')
  const left = head ? head.split(':') : []
  const right = tail ? tail.split(':') : []
  const groups = text.includes('::') ? [...left, ...Array(8 - left.length - right.length).fill('0'), ...right] : left
  return { addr: groups.reduce((a, g) => (a << 16n) | BigInt(parseInt(g, 16)), 0n), bits: 128 }
}

export function parse(text: string): Prefix {
  const [a, len] = text.split('/')
  const { addr, bits } = parseAddr(a)
  return { addr, bits, len: len === undefined ? bits : Number(len) }
}

// valid reports whether a text is an address, or with a length a prefix without host bits, as
// a link of this page has it. Other functions here take valid texts only.
export function valid(text: string): boolean {
  const [a, len, more] = text.split('/')
  if (more !== undefined) return false
  const v4 = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/.exec(a)
  if (v4 ? v4.slice(1).some((n) => Number(n) > 255) : !validV6(a)) return false
  if (len === undefined) return true
  if (!/^\d{1,3}$/.test(len)) return false
  const p = parse(text)
  return p.len <= p.bits && (p.addr & ((1n << BigInt(p.bits - p.len)) - 1n)) === 0n
}

function validV6(text: string): boolean {
  const halves = text.split('::')
  if (!text.includes(':') || halves.length > 2) return false
  const groups = halves.flatMap((h) => (h ? h.split(':') : []))
  return groups.every((g) => /^[0-9a-fA-F]{1,4}$/.test(g)) && (halves.length === 2 ? groups.length < 8 : groups.length === 8)
}

export function formatAddr(addr: bigint, bits: 32 | 128): string {
  if (bits === 32) return [24n, 16n, 8n, 0n].map((s) => (addr >> s) & 255n).join('.')
  const groups = Array.from({ length: 8 }, (_, i) => ((addr >> BigInt(112 - 16 * i)) & 0xffffn).toString(16))
  let best = { at: -1, n: 1 }
  for (let i = 0; i < 8; i++) {
    let n = 0
    while (i + n < 8 && groups[i + n] === '0') n++
    if (n > best.n) best = { at: i, n }
  }
  if (best.at < 0) return groups.join(':')
  return `${groups.slice(0, best.at).join(':')}::${groups.slice(best.at + best.n).join(':')}`
}

export function format(p: Prefix): string {
  return `${formatAddr(p.addr, p.bits)}/${p.len}`
}

export function isSingle(p: Prefix): boolean {
  return p.len === p.bits
}

// cell returns cell number i of a prefix.
export function cell(p: Prefix, cellLen: number, i: number): Prefix {
  return { addr: p.addr + (BigInt(i) << BigInt(p.bits - cellLen)), len: cellLen, bits: p.bits }
}

// cellOf returns the number of the cell that has an address.
export function cellOf(p: Prefix, cellLen: number, addr: bigint): number {
  return Number((addr - p.addr) >> BigInt(p.bits - cellLen))
}

export function contains(p: Prefix, q: Prefix): boolean {
  return p.bits === q.bits && p.len <= q.len && p.addr >> BigInt(p.bits - p.len) === q.addr >> BigInt(p.bits - p.len)
}

// above returns the prefix of a length that contains p.
export function above(p: Prefix, len: number): Prefix {
  const drop = BigInt(p.bits - len)
  return { addr: (p.addr >> drop) << drop, len, bits: p.bits }
}

// name returns how a prefix is shown: an address without its length.
export function name(p: Prefix): string {
  return isSingle(p) ? formatAddr(p.addr, p.bits) : format(p)
}
