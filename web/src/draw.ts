import type { Cell, Part } from './api'
import { type Look, looks, shares, total } from './states'

export interface Grid {
  cols: number
  rows: number
  size: number
  left: number
  top: number
  height: number
}

// layout places n cells in rows of a power of two, so that every row is a prefix. The labels
// of the rows are left of them.
export function layout(n: number, room: number, labels: number): Grid {
  const width = Math.min(room, 672 + labels)
  const bits = Math.round(Math.log2(n))
  const cols = 2 ** Math.ceil(bits / 2)
  const rows = n / cols
  const left = labels
  const size = Math.max(8, Math.min(64, Math.floor((width - left) / cols)))
  return { cols, rows, size, left, top: 0, height: rows * size }
}

export type Palette = Record<string, string>

export function palette(): Palette {
  const style = getComputedStyle(document.documentElement)
  const names = [...looks.map((l) => l.state), 'ink', 'dim', 'paper', 'empty', 'edge', 'focus', 'change']
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
    case 'stripes':
      return (x + y) % tile < 2
    case 'dots':
      return x % 4 < 2 && y % 4 < 2
    case 'cross':
      return (x + y) % tile < 1 || (x - y + tile) % tile < 1
    case 'checks':
      return x < 4 === y < 4 && x % 4 < 3 && y % 4 < 3
    case 'lines':
      return y % 4 < 1
    default:
      return false
  }
}

// Painter draws a part of the map. It keeps the fills of one palette.
export class Painter {
  private fills = new Map<string, string | CanvasPattern>()
  constructor(
    private ctx: CanvasRenderingContext2D,
    private colours: Palette,
  ) {
    for (const look of looks) this.fills.set(look.state, pattern(ctx, look, colours))
  }

  // draw draws a part. scale is the number of dots of the screen for one pixel of CSS.
  draw(part: Part, grid: Grid, at: number, scale: number, labels: string[]): void {
    const { ctx } = this
    ctx.setTransform(scale, 0, 0, scale, 0, 0)
    ctx.fillStyle = this.colours.paper
    ctx.fillRect(0, 0, ctx.canvas.width, ctx.canvas.height)
    ctx.fillStyle = this.colours.dim
    ctx.font = '11px ui-monospace, monospace'
    ctx.textAlign = 'right'
    ctx.textBaseline = 'middle'
    const every = Math.ceil(14 / grid.size)
    labels.forEach((text, row) => {
      if (row % every === 0) ctx.fillText(text, grid.left - 6, grid.top + (row + 0.5) * grid.size)
    })
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
      this.stack(cell, x, y, side, side)
      if (cell.recent && grid.size >= 12) {
        ctx.fillStyle = this.colours.change
        ctx.fillRect(x + side - 4, y, 4, 4)
      }
    }
    this.mark(grid, at, 'focus')
  }

  // stack fills a rectangle with the states of a cell, from the bottom.
  private stack(cell: Cell, x: number, y: number, width: number, height: number): void {
    const whole = total(cell)
    let done = 0
    let bottom = height
    for (const s of shares(cell)) {
      done += s.n
      const top = height - Math.round((height * done) / whole)
      this.ctx.fillStyle = this.fills.get(s.look.state)!
      this.ctx.fillRect(x, y + top, width, bottom - top)
      bottom = top
    }
  }

  // strip draws a part as one row, for the list of pools. A block is never too narrow to see.
  strip(part: Part, n: number, width: number, height: number, scale: number): void {
    const { ctx } = this
    ctx.setTransform(scale, 0, 0, scale, 0, 0)
    ctx.fillStyle = this.colours.empty
    ctx.fillRect(0, 0, width, height)
    for (const cell of part.cells) {
      const x = Math.floor((cell.cell * width) / n)
      this.stack(cell, x, 0, Math.max(2, Math.ceil(((cell.cell + 1) * width) / n) - x), height)
    }
  }

  // mark draws a frame around a cell.
  mark(grid: Grid, at: number, colour: string): void {
    if (at < 0) return
    const { ctx } = this
    ctx.strokeStyle = this.colours[colour]
    ctx.lineWidth = 2
    ctx.strokeRect(grid.left + (at % grid.cols) * grid.size + 1, grid.top + Math.floor(at / grid.cols) * grid.size + 1, grid.size - 2, grid.size - 2)
  }

  // swatch draws one state, for the legend.
  swatch(state: string): void {
    this.ctx.fillStyle = this.fills.get(state)!
    this.ctx.fillRect(0, 0, this.ctx.canvas.width, this.ctx.canvas.height)
  }
}
