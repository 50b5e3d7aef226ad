import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import type { Cell, Part } from './api'
import { layout, Painter, palette } from './draw'
import { cell, format, formatAddr, isSingle, name, type Prefix, parse } from './prefix'
import { looks, words } from './states'

interface Props {
  part: Part
  at: number // the cell of the cursor
  dark: boolean
  move: (at: number) => void
  open: (at: number) => void
  out: () => void
}

// describe returns a cell in words.
export function describe(part: Part, c: Cell | undefined, at: number): string {
  const prefix = cell(parse(part.prefix), part.cellLen, at)
  const what = c?.lease
    ? [c.lease.state, c.lease.pod ?? c.lease.container ?? c.lease.ifName ?? '', c.lease.reason ?? ''].filter(Boolean).join(', ')
    : words(c ?? {})
  const where = c?.node ? `, node ${c.node}` : c?.blocks ? `, ${c.blocks} blocks` : ''
  return `${name(prefix)}: ${what}${where}${c?.recent ? `, ${c.lease ? '' : `${c.recent} `}changed in the last hour` : ''}`
}

export function AddressCanvas({ part, at, dark, move, open, out }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null)
  const box = useRef<HTMLDivElement>(null)
  const [width, setWidth] = useState(640)
  const prefix = parse(part.prefix)
  const n = 2 ** (part.cellLen - prefix.len)
  const labels = rowLabels(prefix, part.cellLen, n)
  const grid = layout(n, width, 10 + 7 * Math.max(...labels.map((l) => l.length)))
  const [hover, setHover] = useState<{ at: number; x: number; y: number }>()
  const cells = new Map(part.cells.map((c) => [c.cell, c]))

  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => setWidth(box.current!.clientWidth))
    watch.observe(box.current!)
    setWidth(box.current!.clientWidth)
    return () => watch.disconnect()
  }, [])

  const painter = useRef<{ key: string; painter: Painter } | null>(null)
  useLayoutEffect(() => {
    const element = canvas.current!
    const begin = performance.now()
    const scale = window.devicePixelRatio || 1
    const wide = grid.left + grid.cols * grid.size
    const high = grid.rows * grid.size
    element.width = Math.round(wide * scale)
    element.height = Math.round(high * scale)
    element.style.width = `${wide}px`
    element.style.height = `${high}px`
    const key = `${dark}`
    if (painter.current?.key !== key) painter.current = { key, painter: new Painter(element.getContext('2d')!, palette()) }
    painter.current.painter.draw(part, grid, at, scale, labels)
    // What the tests read: the place of each cell, and the time that drawing took.
    Object.assign(element.dataset, {
      cols: grid.cols,
      rows: grid.rows,
      left: grid.left,
      size: grid.size,
      scale,
      prefix: part.prefix,
      pool: part.pool,
      cellLen: part.cellLen,
      taken: part.taken,
      frame: (performance.now() - begin).toFixed(2),
    })
  })

  useZoom(canvas, part)

  const cellAt = (e: MouseEvent) => {
    const x = Math.floor((e.offsetX - grid.left) / grid.size)
    const y = Math.floor(e.offsetY / grid.size)
    return x >= 0 && x < grid.cols && y < grid.rows ? y * grid.cols + x : -1
  }
  const keys = (e: KeyboardEvent) => {
    const steps: Record<string, number> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -grid.cols,
      ArrowDown: grid.cols,
      Home: -n,
      End: n,
    }
    if (e.key in steps) move(Math.max(0, Math.min(n - 1, Math.max(at, 0) + steps[e.key])))
    else if (e.key === 'Enter' || e.key === ' ') open(Math.max(at, 0))
    else if (e.key === 'Backspace' || e.key === 'Escape') out()
    else return
    e.preventDefault()
  }
  const named = hover?.at ?? at
  const hint = named >= 0 ? describe(part, cells.get(named), named) : 'Point at a cell, or move with the arrow keys.'
  return (
    <div ref={box} class="canvas">
      <p id="cursor" role="status" aria-live="polite">
        {hint}
      </p>
      <Legend dark={dark} />
      <canvas
        ref={canvas}
        id="map"
        tabIndex={0}
        role="application"
        aria-label={`Map of ${part.prefix} in pool ${part.pool}: ${words(part.counts)}`}
        aria-describedby="map-keys"
        onKeyDown={keys}
        onMouseMove={(e) => {
          const i = cellAt(e)
          setHover(i < 0 ? undefined : { at: i, x: e.offsetX, y: e.offsetY + e.currentTarget.offsetTop })
        }}
        onMouseLeave={() => setHover(undefined)}
        onClick={(e) => {
          const i = cellAt(e)
          if (i >= 0) open(i)
        }}
      />
      {hover && (
        <div class="tip" aria-hidden="true" style={{ left: `${Math.min(hover.x + 14, width - 180)}px`, top: `${hover.y + 18}px` }}>
          {hint}
        </div>
      )}
      <p id="map-keys" class="small">
        {isSingle(cell(prefix, part.cellLen, 0)) ? 'Each cell is one address' : `Each cell is a /${part.cellLen}`}, each row a{' '}
        {format(cell(prefix, part.cellLen - Math.round(Math.log2(grid.cols)), 0)).replace(/.*\//, '/')}. Arrow keys move, Enter opens a cell, Escape goes back,
        / searches.
      </p>
    </div>
  )
}

// rowLabels returns what the rows begin with: of addresses the last number, as ".16".
function rowLabels(p: Prefix, cellLen: number, n: number): string[] {
  const cols = 2 ** Math.ceil(Math.round(Math.log2(n)) / 2)
  return Array.from({ length: n / cols }, (_, row) => {
    const first = formatAddr(cell(p, cellLen, row * cols).addr, p.bits)
    if (p.bits === 128) return first.length > 12 ? `…${first.slice(-11)}` : first
    return p.len >= 24 ? first.replace(/^.*\./, '.') : first
  })
}

// useZoom shows the way from one part to another: the new part grows for a moment.
function useZoom(canvas: { current: HTMLCanvasElement | null }, part: Part) {
  const last = useRef(part.prefix)
  useEffect(() => {
    if (last.current === part.prefix) return
    const closer = parse(last.current).len < parse(part.prefix).len
    last.current = part.prefix
    if (matchMedia('(prefers-reduced-motion: reduce)').matches) return
    canvas.current?.animate(
      [
        { transform: `scale(${closer ? 0.6 : 1.3})`, opacity: 0.3 },
        { transform: 'none', opacity: 1 },
      ],
      {
        duration: 160,
        easing: 'ease-out',
      },
    )
  }, [part.prefix])
}

// Strip is a range in one row.
export function Strip({ part, dark }: { part: Part; dark: boolean }) {
  const canvas = useRef<HTMLCanvasElement>(null)
  useLayoutEffect(() => {
    const element = canvas.current!
    const scale = window.devicePixelRatio || 1
    element.width = Math.round(stripWidth * scale)
    element.height = Math.round(stripHeight * scale)
    const n = 2 ** (part.cellLen - parse(part.prefix).len)
    new Painter(element.getContext('2d')!, palette()).strip(part, n, stripWidth, stripHeight, scale)
  }, [part, dark])
  return <canvas ref={canvas} class="strip" aria-hidden="true" />
}

const stripWidth = 640
const stripHeight = 18

function Legend({ dark }: { dark: boolean }) {
  return (
    <ul class="legend" aria-label="Legend">
      {looks.map((look) => (
        <li key={look.state}>
          <Swatch state={look.state} dark={dark} />
          {look.label}
        </li>
      ))}
      <li>
        <span class="swatch none" /> no block
      </li>
      <li>
        <span class="changed" /> changed in the last hour
      </li>
    </ul>
  )
}

function Swatch({ state, dark }: { state: string; dark: boolean }) {
  const canvas = useRef<HTMLCanvasElement>(null)
  useLayoutEffect(() => {
    new Painter(canvas.current!.getContext('2d')!, palette()).swatch(state)
  }, [state, dark])
  return <canvas ref={canvas} class="swatch" width={16} height={16} aria-hidden="true" data-state={state} />
}
