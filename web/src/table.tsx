import { useMemo } from 'preact/hooks'
import type { Cell, Counts, Part } from './api'
import { cell, isSingle, name, parse } from './prefix'
import { number, own, percent, pods, shares, total, used } from './states'

interface Row {
  from: number
  to: number
  cell: Cell
  place: string
}

// rowsOf joins neighbours that look the same: runs of free addresses are one row.
export function rowsOf(part: Part): Row[] {
  const rows: Row[] = []
  const prefix = parse(part.prefix)
  const place = (i: number) => name(cell(prefix, part.cellLen, i))
  for (const c of part.cells) {
    const last = rows.at(-1)
    if (last && last.to === c.cell - 1 && plain(last.cell) && plain(c) && look(last.cell) === look(c)) last.to = c.cell
    else rows.push({ from: c.cell, to: c.cell, cell: c, place: '' })
  }
  for (const r of rows) r.place = r.from === r.to ? place(r.from) : `${place(r.from)} to ${place(r.to)}`
  return rows
}

const plain = (c: Cell) => !c.lease && !c.recent
const look = (c: Cell) => JSON.stringify({ ...c, cell: 0 })

// CellTable shows the cells of the canvas as a table.
export function CellTable({ part, at, open }: { part: Part; at: number; open: (at: number) => void }) {
  const prefix = parse(part.prefix)
  const rows = useMemo(() => rowsOf(part), [part])
  const single = isSingle(cell(prefix, part.cellLen, 0))
  return (
    <table id="cells">
      <caption>
        {single ? 'Addresses' : 'Cells'} of {part.prefix}
      </caption>
      <thead>
        <tr>
          <th scope="col">{single ? 'Address' : 'Prefix'}</th>
          <th scope="col">State</th>
          <th scope="col">{single ? 'Owner' : 'In use'}</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((r) => {
          return (
            <tr key={r.from} data-cell={r.from} aria-current={at >= r.from && at <= r.to ? 'true' : undefined}>
              <th scope="row">
                <button onClick={() => open(r.from)}>{r.place}</button>
              </th>
              <td>
                {r.cell.lease
                  ? r.cell.lease.state
                  : shares(r.cell)
                      .map((s) => (single ? s.look.label : `${number(s.n)} ${s.look.label}`))
                      .join(', ')}
              </td>
              <td>
                {single
                  ? (r.cell.lease?.pod ?? r.cell.lease?.container ?? r.cell.lease?.ifName ?? r.cell.node ?? '')
                  : `${inUse(r.cell)}${r.cell.node ? `, ${r.cell.node}` : ''}`}
              </td>
            </tr>
          )
        })}
      </tbody>
    </table>
  )
}

const unknown = 'not known here'

// inUse tells how many addresses of a cell are in use, as far as it is known.
function inUse(c: Cell): string {
  const whole = total(c) - (c.otherUnknown ?? 0)
  if (whole === 0) return unknown
  const rest = c.otherUnknown ? `, of ${number(c.otherUnknown)} further ones ${unknown}` : ''
  return `${number(used(c))} of ${number(whole)} (${percent(used(c), whole)})${rest}`
}

// BlockTable lists the blocks of a part.
export function BlockTable({ part, go, node }: { part: Part; go: (prefix: string) => void; node?: (name: string) => void }) {
  return (
    <table id="blocks">
      <caption>Blocks{part.more ? ` (${part.more} more)` : ''}</caption>
      <thead>
        <tr>
          <th scope="col">Block</th>
          <th scope="col">Node</th>
          <th scope="col">In use</th>
          <th scope="col">Free</th>
        </tr>
      </thead>
      <tbody>
        {part.blocks.map((b) => (
          <tr key={b.prefix + b.node}>
            <th scope="row">
              <button onClick={() => go(b.prefix)}>{b.prefix}</button>
            </th>
            <td>
              {node ? <button onClick={() => node(b.node)}>{b.node}</button> : b.node}
              {b.state === 'draining' ? ' (draining)' : ''}
            </td>
            <td>{b.counts.otherUnknown ? unknown : number(used(b.counts))}</td>
            <td>
              {b.own && full(b.counts) ? (
                <strong class="error">full</strong>
              ) : b.own ? (
                number(b.counts.free ?? 0)
              ) : b.counts.otherUnknown ? (
                unknown
              ) : (
                number((b.counts.other ?? 0) - (b.counts.otherHeld ?? 0))
              )}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

// full reports whether the blocks of this node have no free address left.
const full = (c: Counts) => own(c) > 0 && used(c) > 0 && !c.free

// Utilisation shows a bar with the counts beside it.
export function Utilisation({ counts }: { counts: Parameters<typeof total>[0] }) {
  const hidden = counts.otherUnknown ?? 0
  const { busy, whole } = own(counts) ? pods(counts) : { busy: used(counts), whole: total(counts) - hidden }
  return (
    <div class="use">
      <progress max={1} value={whole ? busy / whole : 0} aria-label={`${percent(busy, whole)} in use`} />
      <span>
        {number(busy)} of {number(whole)} in use ({percent(busy, whole)}){own(counts) ? `, ${number(counts.free ?? 0)} free` : ''}
        {full(counts) ? <strong class="error"> full: the next pod gets no address</strong> : ''}
        {hidden && !own(counts) ? `; the use of ${number(hidden)} is not known here` : ''}
      </span>
    </div>
  )
}
