import type { Part } from './api'
import { looks, shares, total, type Look } from './states'

export interface Grid { cols: number; rows: number; size: number; left: number; top: number; height: number }

// layout places n cells in rows of a power of two, so that every row is a prefix.
export function layout(n: number, room: number): Grid {
  const width = Math.min(room, 672)
  const bits = Math.round(Math.log2(n))
  const cols = 2 ** Math.ceil(bits / 2)
  const rows = n / cols
  const left = 0
  const size = Math.max(8, Math.min(64, Math.floor((width - left) / cols)))
  return { cols, rows, size, left, top: 0, height: rows * size }
}

export type Palette = Record<string, string>

export function palette(): Palette {
  const style = getComputedStyle(document.documentElement)
  const names = [...looks.map((l) => l.state), 'ink', 'paper', 'empty', 'edge', 'focus', 'change']
  return Object.fromEntries(names.map((n) => [n, style.getPropertyValue(`--${n}`).trim()]))
}

const tile = 8

// pattern returns the fill of a state: its colour, with its texture in the colour of the paper.
function pattern(ctx: CanvasRenderingContext2D, look: Look, colours: Palette): string | CanvasPattern {
  if (look.texture === 'solid' || look.texture === 'plain') return colours[look.state]
  const canvas = document.createElement('canvas')
  canvas.width = canvas.height = tile
  const c = canvas.getContext('2d')!
  c.fillStyle = colours[look.state]
  c.fillRect(0, 0, tile, tile)
  c.fillStyle = colours.paper
  for (let y = 0; y < tile; y++) {
    for (let x = 0; x < tile; x++) if (marked(look.texture, x, y)) c.fillRect(x, y, 1, 1)
  }
  return ctx.createPattern(canvas, 'repeat')!
}

// marked tells which pixels of a tile a texture leaves in the colour of the paper.
function marked(texture: Look['texture'], x: number, y: number): boolean {
  switch (texture) {
    case 'stripes': return (x + y) % tile < 2
    case 'dots': return x % 4 < 2 && y % 4 < 2
    case 'cross': return (x + y) % tile < 1 || (x - y + tile) % tile < 1
    case 'checks': return (x < 4) === (y < 4) && x % 4 < 3 && y % 4 < 3
    case 'lines': return y % 4 < 1
    default: return false
  }
}

// Painter draws a part of the map. It keeps the fills of one palette.
export class Painter {
  private fills = new Map<string, string | CanvasPattern>()
  constructor(private ctx: CanvasRenderingContext2D, private colours: Palette) {
    for (const look of looks) this.fills.set(look.state, pattern(ctx, look, colours))
  }

  draw(part: Part, grid: Grid, at: number): void {
    const { ctx } = this
    ctx.fillStyle = this.colours.paper
    ctx.fillRect(0, 0, ctx.canvas.width, ctx.canvas.height)
    ctx.fillStyle = this.colours.empty
    const gap = grid.size >= 12 ? 1 : 0
    for (let row = 0; row < grid.rows; row++) {
      for (let col = 0; col < grid.cols; col++) {
        ctx.fillRect(grid.left + col * grid.size, grid.top + row * grid.size, grid.size - gap, grid.size - gap)
      }
    }
    for (const cell of part.cells) {
      const x = grid.left + (cell.cell % grid.cols) * grid.size
      const y = grid.top + Math.floor(cell.cell / grid.cols) * grid.size
      const side = grid.size - gap
      const whole = total(cell)
      let done = 0
      let bottom = side
      for (const s of shares(cell)) {
        done += s.n
        const top = side - Math.round((side * done) / whole)
        ctx.fillStyle = this.fills.get(s.look.state)!
        ctx.fillRect(x, y + top, side, bottom - top)
        bottom = top
      }
      if (cell.recent && grid.size >= 12) {
        ctx.fillStyle = this.colours.change
        ctx.fillRect(x + side - 4, y, 4, 4)
      }
    }
    this.mark(grid, at, 'focus')
  }

  // mark draws a frame around a cell.
  mark(grid: Grid, at: number, colour: string): void {
    if (at < 0) return
    const { ctx } = this
    ctx.strokeStyle = this.colours[colour]
    ctx.lineWidth = 2
    ctx.strokeRect(
      grid.left + (at % grid.cols) * grid.size + 1, grid.top + Math.floor(at / grid.cols) * grid.size + 1,
      grid.size - 2, grid.size - 2,
    )
  }

  // swatch draws one state, for the legend.
  swatch(state: string): void {
    this.ctx.fillStyle = this.fills.get(state)!
    this.ctx.fillRect(0, 0, this.ctx.canvas.width, this.ctx.canvas.height)
  }
}
