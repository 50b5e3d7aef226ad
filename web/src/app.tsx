import { useCallback, useEffect, useRef, useState } from 'preact/hooks'
import { type AddressMap, get, type Hit, type Part, type Status, underway } from './api'
import { AddressCanvas, Strip } from './map'
import { ChangesPanel, Events, Explanation, FindingsPanel, useAnswer, useEvents } from './panels'
import { type Link, outside, type Place, read, rootOf, write } from './place'
import { above, cell, cellOf, contains, format, isSingle, name, parse } from './prefix'
import { Search } from './search'
import { number, used } from './states'
import { BlockTable, CellTable, Utilisation } from './table'

const every = 5000 // ms between two looks at the map; an event is followed by one at once
const least = 1000 // ms between two looks, however many events there are

// useTurn counts the looks at the server.
function useTurn() {
  const [turn, setTurn] = useState(0)
  const last = useRef(0)
  const timer = useRef<number>()
  const next = useCallback(() => {
    if (underway.n > 0) {
      clearTimeout(timer.current)
      timer.current = window.setTimeout(next, 100)
      return
    }
    last.current = Date.now()
    clearTimeout(timer.current)
    timer.current = undefined
    setTurn((n) => n + 1)
  }, [])
  const soon = useCallback(() => {
    timer.current ??= window.setTimeout(next, Math.max(0, last.current + least - Date.now()))
  }, [])
  useEffect(() => {
    const interval = setInterval(() => {
      if (!document.hidden) next()
    }, every)
    return () => {
      clearInterval(interval)
      clearTimeout(timer.current)
    }
  }, [])
  return { turn, soon }
}

function usePlace(): [Link, (p: Place, replace?: boolean) => void] {
  const [link, set] = useState(read)
  useEffect(() => {
    const moved = () => set(read())
    addEventListener('popstate', moved)
    addEventListener('hashchange', moved)
    return () => {
      removeEventListener('popstate', moved)
      removeEventListener('hashchange', moved)
    }
  }, [])
  return [
    link,
    (p, replace) => {
      write(p, replace)
      set({ place: p, dropped: [] })
    },
  ]
}

function useTheme(): [boolean, () => void] {
  const [dark, set] = useState(matchMedia('(prefers-color-scheme: dark)').matches)
  document.documentElement.dataset.theme = dark ? 'dark' : 'light'
  useEffect(() => {
    const media = matchMedia('(prefers-color-scheme: dark)')
    const changed = () => set(media.matches)
    media.addEventListener('change', changed)
    return () => media.removeEventListener('change', changed)
  }, [])
  return [dark, () => set(!dark)]
}

type Tab = 'events' | 'changes' | 'findings'
const tabs: Tab[] = ['events', 'changes', 'findings']

export function App() {
  const [link, go] = usePlace()
  const [dark, toggle] = useTheme()
  const { turn, soon } = useTurn()
  const [tab, setTab] = useState<Tab>('events')
  const map = useAnswer(`${turn}`, (s) => get<AddressMap>('map', {}, s))
  const lost = map.answer ? outside(map.answer, link.place) : ''
  const place = lost ? {} : link.place
  const dropped = lost ? [...link.dropped, lost] : link.dropped
  const fullest = map.answer && !place.prefix ? fullestOf(map.answer) : undefined
  const cluster = map.answer?.scope === 'cluster' // an operator answers
  const served = map.answer !== undefined
  const stream = useEvents(served, soon)
  const status = useAnswer(`${turn}`, (s) => get<Status>('status', {}, s), served)
  const show = (prefix: string, pool: string): Place =>
    isSingle(parse(prefix)) ? placeOf(map.answer, pool, name(parse(prefix))) : { pool: poolOf(map.answer, pool, prefix), prefix }
  const find = (place: string, pool: string) => go(show(place, pool))
  const hit = (h: Hit) => go({ ...show(h.prefix, h.pool), pod: h.pod, node: cluster ? h.node : undefined })
  const subject = subjectOf(place, cluster)
  return (
    <>
      <header>
        <h1>Cadastre</h1>
        <Who map={map.answer} status={status.answer} />
        <Search go={hit} />
        <button id="theme" onClick={toggle}>
          {dark ? 'light' : 'dark'}
        </button>
        {map.error && (
          <p class="error" role="alert">
            The map is not up to date: {map.error}
          </p>
        )}
      </header>
      <main>
        <div>
          {dropped.length > 0 && (
            <p id="dropped" class="error" role="alert">
              The link is not complete: {dropped.join('; ')}. That part was left out.
            </p>
          )}
          {place.prefix ? (
            map.answer ? (
              <PartView map={map.answer} place={place as Shown} turn={turn} dark={dark} go={go} />
            ) : (
              <p class="dim">Reading the address space…</p>
            )
          ) : (
            <>
              <Pools map={map.answer} turn={turn} dark={dark} go={go} />
              {fullest && <PartView map={map.answer} place={fullest} turn={turn} dark={dark} go={go} overview />}
            </>
          )}
        </div>
        {served && (
          <aside>
            {subject && <Explanation args={subject} turn={turn} />}
            <Tabs all={tabs} tab={tab} choose={setTab} />
            <div role="tabpanel" id="panel" aria-labelledby={`tab-${tab}`}>
              {tab === 'events' && <Events {...stream} note={cluster ? noteOf(status.answer) : undefined} />}
              {tab === 'changes' && <ChangesPanel turn={turn} dark={dark} cluster={cluster} find={find} />}
              {tab === 'findings' && <FindingsPanel turn={Math.floor(turn / 6)} find={find} />}
            </div>
            {cluster && (
              <p class="small">
                Leases are in the ledgers of the nodes: <code>cadastre page</code> on a node shows them.
              </p>
            )}
          </aside>
        )}
      </main>
    </>
  )
}

const titles: Record<Tab, string> = { events: 'Live events', changes: 'Last hour', findings: 'Findings' }

// Tabs is one stop for the Tab key; the arrow keys change the panel.
function Tabs({ all, tab, choose }: { all: Tab[]; tab: Tab; choose: (t: Tab) => void }) {
  const keys = (e: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: all.length - 1 }
    if (!(e.key in steps)) return
    const next = all[(all.indexOf(tab) + steps[e.key]) % all.length]
    choose(next)
    document.getElementById(`tab-${next}`)?.focus()
    e.preventDefault()
  }
  return (
    <div class="tabs" role="tablist" aria-label="What happens" onKeyDown={keys}>
      {all.map((t) => (
        <button key={t} role="tab" id={`tab-${t}`} aria-selected={t === tab} aria-controls="panel" tabIndex={t === tab ? 0 : -1} onClick={() => choose(t)}>
          {titles[t]}
        </button>
      ))}
    </div>
  )
}

// subjectOf returns the arguments for the explanation of what is selected.
function subjectOf(place: Place, cluster: boolean): Record<string, string> | undefined {
  if (place.pod) return { pod: place.pod }
  if (place.node && cluster) return { node: place.node }
  if (place.at) return { address: place.at }
  if (place.prefix && place.pool && cluster) return { block: place.prefix, of: place.pool }
  return place.pool ? { pool: place.pool } : undefined
}

function noteOf(status?: Status): string {
  if (!status) return ''
  return status.leading ? 'This operator leads: its decisions.' : 'This operator waits to lead: the page of the leader has its decisions.'
}

// poolOf returns the pool of a prefix: the named one, or the first that has the prefix.
function poolOf(map: AddressMap | undefined, pool: string, prefix: string): string {
  if (map?.pools.some((x) => x.name === pool)) return pool
  const p = parse(prefix)
  return map?.pools.find((x) => x.roots.some((r) => contains(parse(r.prefix), p)))?.name ?? pool
}

// placeOf returns the part of the map that shows an address: at most 1024 addresses.
function placeOf(map: AddressMap | undefined, pool: string, ip: string): Place {
  const p = parse(ip)
  const known = poolOf(map, pool, ip)
  const root = rootOf(map, { pool: known, prefix: ip })
  const len = Math.max(p.bits - 8, root ? parse(root).len : 0)
  return { pool: known, prefix: format(above(p, len)), at: ip }
}

function Who({ map, status }: { map?: AddressMap; status?: Status }) {
  if (!map) return null
  const state =
    status &&
    (status.suspended
      ? `allocates nothing: ${status.suspended}`
      : !status.ready
        ? `not ready: ${status.readyError}`
        : status.leading === undefined
          ? 'ready'
          : status.leading
            ? 'this operator leads'
            : 'this operator waits to lead')
  return (
    <span id="who">
      {map.scope === 'node' ? `node ${map.node}` : 'cluster'}
      {state ? `, ${state}` : ''}
    </span>
  )
}

// fullestOf returns the range with the most addresses in use: the first screen shows its map.
function fullestOf(map: AddressMap): Shown | undefined {
  const all = map.pools.flatMap((p) => p.roots.map((r) => ({ pool: p.name, prefix: r.prefix, n: used(r.counts) })))
  return all.sort((a, b) => b.n - a.n)[0]
}

// strips is how many ranges have a strip: each is a request of its own.
const strips = 8

function RangeStrip({ pool, prefix, turn, dark }: { pool: string; prefix: string; turn: number; dark: boolean }) {
  const { answer } = useAnswer(`${pool} ${prefix} ${Math.floor(turn / 6)}`, (s) => get<Part>('map', { pool, prefix }, s))
  return answer ? <Strip part={answer} dark={dark} /> : null
}

function Pools({ map, turn, dark, go }: { map?: AddressMap; turn: number; dark: boolean; go: (p: Place) => void }) {
  if (!map) return <p class="dim">Reading the address space…</p>
  let drawn = 0
  return (
    <section aria-label="Pools">
      <h2>Pools</h2>
      <ul class="pools">
        {map.pools.map((p) => (
          <li key={p.name} data-pool={p.name}>
            <strong>{p.name}</strong>
            <Utilisation counts={p.counts} />
            <ul>
              {p.roots.map((r) => (
                <li key={r.prefix}>
                  <button class="range" onClick={() => go({ pool: p.name, prefix: r.prefix })}>
                    {r.prefix}{' '}
                    <span class="dim">
                      {number(r.blocks)} {r.blocks === 1 ? 'block' : 'blocks'}
                    </span>
                    {drawn++ < strips && <RangeStrip pool={p.name} prefix={r.prefix} turn={turn} dark={dark} />}
                  </button>
                </li>
              ))}
            </ul>
          </li>
        ))}
      </ul>
      {map.pools.length === 0 && <p class="dim">There is no pool yet.</p>}
      {map.more && <p class="dim">{map.more} more pools: search for their names.</p>}
    </section>
  )
}

type Shown = Place & { pool: string; prefix: string }

// overview: the part is below the list of pools, not the place of the link.
interface PartProps {
  map?: AddressMap
  place: Shown
  turn: number
  dark: boolean
  go: (p: Place, replace?: boolean) => void
  overview?: boolean
}

function PartView({ map, place, turn, dark, go, overview }: PartProps) {
  const { answer, error } = useAnswer(`${place.pool} ${place.prefix} ${turn}`, (s) => get<Part>('map', { pool: place.pool, prefix: place.prefix }, s))
  const [cursor, setCursor] = useState(-1)
  useEffect(() => setCursor(-1), [place.prefix])
  const [table, setTable] = useState(false)
  const part = answer?.prefix === place.prefix && answer.pool === place.pool ? answer : undefined
  const up = parentOf(map, part, place)
  const narrower = part && place.at ? narrowerOf(part, place.at) : undefined
  useEffect(() => {
    if (narrower) go({ ...place, prefix: narrower }, true) // an address has a cell of its own
  }, [narrower])
  if (!part)
    return (
      <>
        {!overview && <Crumbs place={place} up={up} go={go} />}
        {error ? <p class="error">{error}</p> : <p class="dim">Reading {place.prefix}…</p>}
      </>
    )
  const prefix = parse(part.prefix)
  const at = place.at ? cellOf(prefix, part.cellLen, parse(place.at).addr) : cursor
  const open = (i: number) => {
    const c = cell(prefix, part.cellLen, i)
    if (isSingle(c)) go({ pool: place.pool, prefix: place.prefix, at: name(c) })
    else go({ pool: place.pool, prefix: format(c) })
  }
  const move = (i: number) => {
    setCursor(i)
    if (place.at) go({ pool: place.pool, prefix: place.prefix, at: name(cell(prefix, part.cellLen, i)) }, true)
  }
  return (
    <section aria-label={`Map of ${part.prefix}`}>
      {overview ? (
        <h2>
          {part.prefix}, in pool {part.pool}
        </h2>
      ) : (
        <Crumbs place={place} up={up} go={go} />
      )}
      <Utilisation counts={part.counts} />
      <AddressCanvas part={part} at={at} dark={dark} move={move} open={open} out={() => go(up.at(-1) ?? {})} />
      {part.occupied && part.occupied !== part.prefix && parse(part.occupied).len > part.cellLen && !isSingle(parse(part.occupied)) && (
        <p>
          <button onClick={() => go({ pool: place.pool, prefix: part.occupied })}>All leases are in {part.occupied}</button>
        </p>
      )}
      <p>
        <button id="table" aria-pressed={table} aria-controls="cells" onClick={() => setTable(!table)}>
          {table ? 'Hide the table' : 'Show as a table'}
        </button>
      </p>
      {(table || !overview) && (
        <div class={table ? 'scroll' : 'hidden'}>
          <CellTable part={part} at={at} open={open} />
        </div>
      )}
      {part.blocks.length > 0 && (table || !overview) && (
        <div class="scroll">
          <BlockTable
            part={part}
            go={(p) => go({ pool: place.pool, prefix: p })}
            node={map?.scope === 'cluster' ? (n) => go({ pool: place.pool, prefix: place.prefix, node: n }) : undefined}
          />
        </div>
      )}
    </section>
  )
}

// narrowerOf returns the block of an address in a part whose cells are not single addresses,
// or the cell without a block; undefined if its cells are.
function narrowerOf(part: Part, at: string): string | undefined {
  const p = parse(part.prefix)
  const address = parse(at)
  if (part.cellLen === p.bits) return undefined
  const block = part.blocks.find((b) => contains(parse(b.prefix), address) && parse(b.prefix).len > p.len)
  return block?.prefix ?? format(cell(p, part.cellLen, cellOf(p, part.cellLen, address.addr)))
}

// parentOf returns the places above a prefix: the pools, the root, and the block.
function parentOf(map: AddressMap | undefined, part: Part | undefined, place: Shown): Place[] {
  const up: Place[] = [{}]
  const root = rootOf(map, place)
  if (root && root !== place.prefix) up.push({ pool: place.pool, prefix: root })
  const block = part?.blocks.find((b) => b.prefix !== place.prefix && b.prefix !== root && contains(parse(b.prefix), parse(place.prefix)))
  if (block) up.push({ pool: place.pool, prefix: block.prefix })
  if (place.at) up.push({ pool: place.pool, prefix: place.prefix })
  return up
}

function Crumbs({ place, up, go }: { place: Shown; up: Place[]; go: (p: Place) => void }) {
  return (
    <nav aria-label="Place">
      <ol class="crumbs">
        {up.map((p) => (
          <li key={p.prefix ?? ''}>
            <button onClick={() => go(p)}>{p.prefix ? p.prefix : 'All pools'}</button>
          </li>
        ))}
        <li aria-current="page">
          {place.at ?? place.prefix} <span class="dim">{place.pool}</span>
        </li>
      </ol>
    </nav>
  )
}
