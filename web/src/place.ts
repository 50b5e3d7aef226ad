import type { AddressMap } from './api'
import { contains, isSingle, parse, valid } from './prefix'

// Place is what the page shows: all pools, a prefix of a pool, and an address in it; and the
// pod or the node that is explained instead of that. It is in the fragment of the URL, so that it
// can be sent to a colleague.
export interface Place {
  pool?: string
  prefix?: string
  at?: string
  pod?: string
  node?: string
}

// Link is the place of a link. A link that was cut off, or written by hand, may have parts
// that are no place: those are left out, and dropped names them.
export interface Link {
  place: Place
  dropped: string[]
}

export function read(): Link {
  const args = new URLSearchParams(location.hash.slice(1))
  const place: Place = {}
  const dropped: string[] = []
  for (const name of ['pool', 'prefix', 'at', 'pod', 'node'] as const) {
    const text = args.get(name)
    if (!text) continue
    if (name === 'prefix' && !(text.includes('/') && valid(text))) dropped.push(`prefix=${text} is no prefix`)
    else if (name === 'at' && !(valid(text) && isSingle(parse(text)))) dropped.push(`at=${text} is no address`)
    else place[name] = text
  }
  if (place.at && !place.prefix) {
    if (dropped.length === 0) dropped.push(`at=${place.at} is without a prefix`)
    delete place.at
  }
  if (place.at && place.prefix && !contains(parse(place.prefix), parse(place.at))) {
    dropped.push(`at=${place.at} is not in ${place.prefix}`)
    delete place.at
  }
  return { place, dropped }
}

// outside says why a place is not on the map, '' if it is.
export function outside(map: AddressMap, place: Place): string {
  if (!place.prefix || rootOf(map, place) || map.more) return ''
  const pool = map.pools.find((x) => x.name === place.pool)
  const p = parse(place.prefix)
  if (pool?.roots.some((r) => contains(p, parse(r.prefix)))) return '' // wider than its ranges
  return pool ? `${place.prefix} is not in pool ${pool.name}` : `there is no pool ${place.pool ?? 'in the link'}`
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
