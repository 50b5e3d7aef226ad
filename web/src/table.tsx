import type { Cell, Part } from './api'
import { cell, isSingle, name, parse } from './prefix'
import { number, own, percent, shares, total, used } from './states'

interface Row { from: number; to: number; cell: Cell }

// rowsOf joins neighbours that look the same: runs of free addresses are one row.
export function rowsOf(part: Part): Row[] {
  const rows: Row[] = []
  for (const c of part.cells) {
    const last = rows.at(-1)
    if (last && last.to === c.cell - 1 && plain(last.cell) && plain(c) && look(last.cell) === look(c)) last.to = c.cell
    else rows.push({ from: c.cell, to: c.cell, cell: c })
  }
  return rows
}

const plain = (c: Cell) => !c.lease && !c.recent
const look = (c: Cell) => JSON.stringify({ ...c, cell: 0 })

// CellTable shows the cells of the canvas as a table.
export function CellTable({ part, at, open }: { part: Part; at: number; open: (at: number) => void }) {
  const prefix = parse(part.prefix)
  const place = (i: number) => name(cell(prefix, part.cellLen, i))
  const single = isSingle(cell(prefix, part.cellLen, 0))
  return (
    <table id="cells">
      <caption>{single ? 'Addresses' : 'Cells'} of {part.prefix}</caption>
      <thead>
        <tr>
          <th scope="col">{single ? 'Address' : 'Prefix'}</th>
          <th scope="col">State</th>
          <th scope="col">{single ? 'Owner' : 'In use'}</th>
        </tr>
      </thead>
      <tbody>
        {rowsOf(part).map((r) => {
          const n = r.to - r.from + 1
          return (
            <tr key={r.from} data-cell={r.from} aria-current={at >= r.from && at <= r.to ? 'true' : undefined}>
              <th scope="row">
                <button onClick={() => open(r.from)}>{n === 1 ? place(r.from) : `${place(r.from)} to ${place(r.to)}`}</button>
              </th>
              <td>
                {r.cell.lease
                  ? r.cell.lease.state
                  : shares(r.cell).map((s) => (single ? s.look.label : `${number(s.n)} ${s.look.label}`)).join(', ')}
              </td>
              <td>
                {single
                  ? (r.cell.lease?.pod ?? r.cell.lease?.container ?? r.cell.lease?.ifName ?? r.cell.node ?? '')
                  : `${number(used(r.cell))} of ${number(total(r.cell))} (${percent(used(r.cell), total(r.cell))})${r.cell.node ? `, ${r.cell.node}` : ''}`}
              </td>
            </tr>
          )
        })}
      </tbody>
    </table>
  )
}

// BlockTable lists the blocks of a part.
export function BlockTable({ part, go }: { part: Part; go: (prefix: string) => void }) {
  return (
    <table id="blocks">
      <caption>Blocks{part.more ? ` (${part.more} more)` : ''}</caption>
      <thead>
        <tr><th scope="col">Block</th><th scope="col">Node</th><th scope="col">In use</th><th scope="col">Free</th></tr>
      </thead>
      <tbody>
        {part.blocks.map((b) => (
          <tr key={b.prefix + b.node}>
            <th scope="row"><button onClick={() => go(b.prefix)}>{b.prefix}</button></th>
            <td>{b.node}{b.state === 'draining' ? ' (draining)' : ''}</td>
            <td>{b.own || b.counts.otherHeld ? number(used(b.counts)) : '?'}</td>
            <td>{b.own ? number(b.counts.free ?? 0) : '?'}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

// Utilisation shows a bar with the counts beside it.
export function Utilisation({ counts }: { counts: Parameters<typeof total>[0] }) {
  const whole = own(counts) || total(counts)
  const busy = used(counts) - (own(counts) ? (counts.otherHeld ?? 0) : 0)
  return (
    <div class="use">
      <progress max={1} value={whole ? busy / whole : 0} aria-label={`${percent(busy, whole)} in use`} />
      <span>{number(busy)} of {number(whole)} in use ({percent(busy, whole)}), {number(counts.free ?? 0)} free</span>
    </div>
  )
}
