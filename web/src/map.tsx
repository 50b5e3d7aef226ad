import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import type { Cell, Part } from './api'
import { layout, Painter, palette } from './draw'
import { cell, format, isSingle, name, parse } from './prefix'
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
  const grid = layout(n, width)
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
    element.width = grid.cols * grid.size
    element.height = grid.rows * grid.size
    const key = `${dark}`
    if (painter.current?.key !== key) painter.current = { key, painter: new Painter(element.getContext('2d')!, palette()) }
    painter.current.painter.draw(part, grid, at)
    // What the tests read: the place of each cell, and the time that drawing took.
    Object.assign(element.dataset, {
      cols: grid.cols, size: grid.size, prefix: part.prefix, pool: part.pool, cellLen: part.cellLen, taken: part.taken,
      frame: (performance.now() - begin).toFixed(2),
    })
  })

  useZoom(canvas, part)

  const cellAt = (e: MouseEvent) => {
    const x = Math.floor(e.offsetX / grid.size)
    const y = Math.floor(e.offsetY / grid.size)
    return x < grid.cols && y < grid.rows ? y * grid.cols + x : -1
  }
  const keys = (e: KeyboardEvent) => {
    const steps: Record<string, number> = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid.cols, ArrowDown: grid.cols, Home: -n, End: n,
    }
    if (e.key in steps) move(Math.max(0, Math.min(n - 1, Math.max(at, 0) + steps[e.key])))
    else if (e.key === 'Enter' || e.key === ' ') open(Math.max(at, 0))
    else if (e.key === 'Backspace' || e.key === 'Escape') out()
    else return
    e.preventDefault()
  }
  const hint = at >= 0 ? describe(part, cells.get(at), at) : ''
  return (
    <div ref={box} class="canvas">
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
          e.currentTarget.title = i < 0 ? '' : describe(part, cells.get(i), i)
        }}
        onClick={(e) => {
          const i = cellAt(e)
          if (i >= 0) open(i)
        }}
      />
      <p id="map-keys" class="small">
        {isSingle(cell(prefix, part.cellLen, 0)) ? 'Each cell is one address' : `Each cell is a /${part.cellLen}`}, each row a{' '}
        {format(cell(prefix, part.cellLen - Math.round(Math.log2(grid.cols)), 0)).replace(/.*\//, '/')}. Arrow keys move,
        Enter opens a cell, Escape goes back, / searches.
      </p>
      <p id="cursor" role="status" aria-live="polite">{hint}</p>
    </div>
  )
}

// useZoom shows the way from one part to another: the new part grows for a moment.
function useZoom(canvas: { current: HTMLCanvasElement | null }, part: Part) {
  const last = useRef(part.prefix)
  useEffect(() => {
    if (last.current === part.prefix) return
    const closer = parse(last.current).len < parse(part.prefix).len
    last.current = part.prefix
    if (matchMedia('(prefers-reduced-motion: reduce)').matches) return
    canvas.current?.animate([{ transform: `scale(${closer ? 0.6 : 1.3})`, opacity: 0.3 }, { transform: 'none', opacity: 1 }], {
      duration: 160,
      easing: 'ease-out',
    })
  }, [part.prefix])
}

export function Legend({ dark }: { dark: boolean }) {
  return (
    <ul class="legend" aria-label="Legend">
      {looks.map((look) => (
        <li key={look.state}>
          <Swatch state={look.state} dark={dark} />
          {look.label}
        </li>
      ))}
      <li><span class="changed" /> changed in the last hour</li>
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
