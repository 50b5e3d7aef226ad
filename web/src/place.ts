import type { AddressMap } from './api'
import { contains, parse } from './prefix'

// Place is what the page shows: all pools, a prefix of a pool, and an address in it; and the
// pod or the node that is explained instead of that. It is in the fragment of the URL, so that it
// can be sent to a colleague.
export interface Place { pool?: string; prefix?: string; at?: string; pod?: string; node?: string }

export function read(): Place {
  const args = new URLSearchParams(location.hash.slice(1))
  const get = (name: string) => args.get(name) ?? undefined
  return { pool: get('pool'), prefix: get('prefix'), at: get('at'), pod: get('pod'), node: get('node') }
}

export function write(place: Place, replace = false): void {
  const args = new URLSearchParams()
  for (const [name, value] of Object.entries(place)) if (value) args.set(name, value)
  const url = `#${args.toString().replaceAll('%2F', '/').replaceAll('%3A', ':')}`
  if (url === (location.hash || '#')) return
  if (replace) history.replaceState(null, '', url)
  else history.pushState(null, '', url)
}

// rootOf returns the root of a pool that contains a prefix.
export function rootOf(map: AddressMap | undefined, place: Place): string | undefined {
  if (!place.prefix) return undefined
  const p = parse(place.prefix)
  return map?.pools.find((x) => x.name === place.pool)?.roots.find((r) => contains(parse(r.prefix), p))?.prefix
}
