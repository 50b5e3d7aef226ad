import { useEffect, useRef, useState } from 'preact/hooks'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { address, type Branch, type Changes, type EventRecord, type Finding, type Findings, get, NotServed, type Tree } from './api'

// useAnswer asks again whenever a key changes. An earlier answer stays until the next one.
export function useAnswer<T>(key: string, ask: (signal: AbortSignal) => Promise<T>, served = true) {
  const [state, set] = useState<{ answer?: T; error?: string; none?: boolean }>({})
  useEffect(() => {
    if (!served) return
    const abort = new AbortController()
    ask(abort.signal).then(
      (answer) => set({ answer }),
      (e: Error) => {
        if (!abort.signal.aborted) set((old) => ({ ...old, error: e.message, none: e instanceof NotServed }))
      },
    )
    return () => abort.abort()
  }, [key, served])
  return state
}

// Explanation shows why a pool, a block, a node, an address or a pod is as it is.
export function Explanation({ args, turn }: { args: Record<string, string>; turn: number }) {
  const { answer, error } = useAnswer(`${JSON.stringify(args)} ${turn}`, (s) => get<Tree>('explain', args, s))
  if (error) return <p class="dim">{error}</p>
  if (!answer) return null
  return (
    <section id="explain" aria-label={`Explanation of ${answer.subject}`}>
      <p>
        <strong>{answer.subject}</strong>: {answer.answer}
      </p>
      <Branches all={answer.because ?? []} />
      {answer.fix?.map((f) => (
        <p key={f.command}>
          {f.text}:<pre>{f.command}</pre>
        </p>
      ))}
    </section>
  )
}

function Branches({ all }: { all: Branch[] }) {
  if (all.length === 0) return null
  return (
    <ul class="tree">
      {all.map((b, i) => (
        <li key={i}>
          {b.text}
          <Branches all={b.because ?? []} />
        </li>
      ))}
    </ul>
  )
}

const kept = 50

// useEvents follows the events of the agent, the newest first.
export function useEvents(served: boolean, happened: () => void) {
  const [events, set] = useState<EventRecord[]>([])
  const [state, setState] = useState('connecting')
  useEffect(() => {
    if (!served) return
    const source = new EventSource(address('events', { follow: 'true', last: `${kept}` }))
    source.onopen = () => setState('live')
    source.onerror = () => setState(source.readyState === EventSource.CLOSED ? 'not served here' : 'reconnecting')
    source.onmessage = (m) => {
      const record = JSON.parse(m.data) as EventRecord
      set((old) => [record, ...old.filter((e) => e.SeqNum !== record.SeqNum)].slice(0, kept))
      happened()
    }
    return () => source.close()
  }, [served])
  return { events, state }
}

const time = (text: string) => new Date(text).toLocaleTimeString('en-GB')

// line says in plain words what an event is about, such as "Add Pod shop/web-13: 10.2.1.2".
export function line(e: EventRecord): string {
  const addresses = e.Subject?.Addresses?.join(', ')
  const who = e.Subject?.Pod || e.Subject?.Container?.slice(0, 12)
  if (who) return `${e.Name} ${who}${addresses ? `: ${addresses}` : ''}`
  const text = e.Description.replace(/\s+/g, ' ').trim()
  const list = text.startsWith(e.Name) ? text.slice(e.Name.length).trim() : text
  const more = list
    .replace(/^\* /, '')
    .split(' * ')
    .filter((entry) => !entry.endsWith(': 0')) // a resync counts all kinds of values
    .join(', ')
  return `${e.Name}${more ? `: ${more}` : ''}${addresses ? `: ${addresses}` : ''}`
}

export function Events({ events, state, note }: { events: EventRecord[]; state: string; note?: string }) {
  return (
    <section id="events" aria-label="Events">
      <p class="small">
        Event stream:{' '}
        <span id="stream" role="status">
          {state}
        </span>
        {note ? `. ${note}` : ''}
      </p>
      <ol class="events scroll" tabIndex={0} aria-label="Events, the newest first">
        {events.map((e) => {
          const failed = e.Error || e.CommitError || e.TxnError
          return (
            <li key={e.SeqNum} data-seq={e.SeqNum}>
              <details>
                <summary>
                  <span class="dim">{time(e.ProcessingStart)}</span> {line(e)}
                  {failed && <span class="error"> failed: {failed}</span>}
                </summary>
                <div class="dim">
                  #{e.SeqNum} {e.Description}
                  {(e.Handlers ?? []).map((h) => (
                    <div
                      key={h.Handler + h.Revert}
                      class={h.Error ? 'error' : ''}
                    >{`${h.Revert ? 'undo ' : ''}${h.Handler}: ${h.Error || h.Change || 'ok'}`}</div>
                  ))}
                  {e.Note}
                </div>
              </details>
            </li>
          )
        })}
      </ol>
    </section>
  )
}

// ChangesPanel shows the last hour: of a node a plot of claims and releases and the last
// changes, of an operator its decisions.
export function ChangesPanel({ turn, dark, cluster, find }: { turn: number; dark: boolean; cluster: boolean; find: (ip: string, pool: string) => void }) {
  const { answer, error } = useAnswer(`${turn}`, (s) => get<Changes>('map/changes', {}, s))
  if (error) return <p class="dim">{error}</p>
  if (!answer) return null
  if (cluster) return <Decisions answer={answer} dark={dark} />
  if (!answer.recorded) return <p class="dim">This agent records no history.</p>
  const sum = (of: 'claimed' | 'released' | 'other') => answer.minutes.reduce((n, m) => n + m[of], 0)
  return (
    <section id="changes" aria-label="Changes of the last hour">
      <p id="changes-sum">
        In the last hour {answer.cut ? 'more than ' : ''}
        {sum('claimed')} claimed, {sum('released')} released, {sum('other')} other changes.
      </p>
      <Plot changes={answer} dark={dark} />
      <p class="small">
        <span class="claimed" /> claimed <span class="released" /> released, by minute
      </p>
      <table>
        <caption>Last changes</caption>
        <thead>
          <tr>
            <th scope="col">Time</th>
            <th scope="col">Change</th>
            <th scope="col">Address</th>
            <th scope="col">Owner</th>
          </tr>
        </thead>
        <tbody>
          {answer.recent.map((c) => (
            <tr key={c.number}>
              <td>{time(c.time)}</td>
              <td>{c.action}</td>
              <td>{c.ip ? <button onClick={() => find(c.ip!, c.pool)}>{c.ip}</button> : c.block}</td>
              <td>{c.podName ? `${c.podNamespace}/${c.podName}` : (c.containerID ?? '')}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  )
}

function Decisions({ answer, dark }: { answer: Changes; dark: boolean }) {
  const all = answer.decisions ?? []
  const sum = (of: 'count' | 'failed') => all.reduce((n, d) => n + d[of], 0)
  return (
    <section id="changes" aria-label="Decisions of the last hour">
      <p id="changes-sum">
        In the last hour {answer.cut ? 'more than ' : ''}
        {sum('count')} decisions, of which {sum('failed')} failed.
      </p>
      <Plot changes={answer} dark={dark} />
      <p class="small">
        <span class="claimed" /> decisions, by minute
      </p>
      <table>
        <caption>Decisions, the newest first</caption>
        <thead>
          <tr>
            <th scope="col">Last</th>
            <th scope="col">Decision</th>
            <th scope="col">Times</th>
            <th scope="col">Failed</th>
          </tr>
        </thead>
        <tbody>
          {all.map((d) => (
            <tr key={`${d.by} ${d.name}`}>
              <td>{time(d.last)}</td>
              <td>
                {d.by}: {d.name}
              </td>
              <td>{d.count}</td>
              <td>{d.failed}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  )
}

function Plot({ changes, dark }: { changes: Changes; dark: boolean }) {
  const box = useRef<HTMLDivElement>(null)
  useEffect(() => {
    const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()
    const end = Math.floor(Date.parse(changes.until) / 1000)
    const n = changes.minutes.length
    const bars = uPlot.paths.bars!({ size: [0.4, 8], align: 1 })
    const later = uPlot.paths.bars!({ size: [0.4, 8], align: -1 })
    const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' })
    const axis = { stroke: colour('dim'), grid: { stroke: colour('edge'), width: 1 }, ticks: { show: false } }
    const plot = new uPlot(
      {
        width: box.current!.clientWidth || 400,
        height: 160,
        axes: [
          { ...axis, values: (_: uPlot, at: number[]) => at.map((s) => clock.format(s * 1000)) },
          { ...axis, size: 40 },
        ],
        scales: { y: { range: (_, __, max) => [0, Math.max(max, 4)] } },
        cursor: { show: false },
        legend: { show: false },
        series: [
          {},
          { label: 'claimed', fill: colour('claimed'), stroke: colour('claimed'), paths: bars, points: { show: false } },
          { label: 'released', fill: colour('released'), stroke: colour('released'), paths: later, points: { show: false } },
        ],
      },
      [
        changes.minutes.map((_, i) => end - 60 * (n - i) + 30),
        changes.minutes.map((m) => (changes.decisions ? m.other : m.claimed)),
        changes.minutes.map((m) => m.released),
      ],
      box.current!,
    )
    return () => plot.destroy()
  }, [changes.until, dark])
  return <div ref={box} class="plot" aria-hidden="true" />
}

// FindingsPanel shows the differences that a check has found.
export function FindingsPanel({ turn, find }: { turn: number; find: (place: string, pool: string) => void }) {
  const { answer, error } = useAnswer(`${turn}`, (s) => get<Findings>('map/findings', {}, s))
  if (error) return <p class="dim">{error}</p>
  if (!answer) return <p class="dim">Comparing…</p>
  const node = answer.report?.findings ?? []
  const cluster = answer.cluster?.findings ?? []
  return (
    <section id="findings" aria-label="Findings">
      {answer.error && <p class="error">{answer.error}</p>}
      {answer.cluster && !answer.report && (
        <p id="compared">
          {cluster.length === 0 ? 'No differences' : `${answer.cluster.total} findings`} among {(answer.cluster.compared ?? []).join(', ') || 'no objects'}.
        </p>
      )}
      {answer.report && (
        <p>
          {node.length === 0 ? 'No differences' : `${node.length} findings`} among {answer.report.leases} leases of this node.
        </p>
      )}
      {[...node, ...cluster].map((f) => (
        <FindingItem key={f.number + f.text} f={f} find={find} />
      ))}
      {answer.cluster?.problem && <p class="small">Cluster: {answer.cluster.problem}</p>}
      {!answer.report &&
        (answer.cluster?.leftOut ?? []).map((text) => (
          <p class="small" key={text}>
            Not compared: {text}
          </p>
        ))}
    </section>
  )
}

function FindingItem({ f, find }: { f: Finding; find: (place: string, pool: string) => void }) {
  return (
    <article>
      <p>
        <strong>
          {f.number} {f.name}
        </strong>
        : {f.text}{' '}
        {(f.subject.addr ?? f.subject.prefix) && (
          <button onClick={() => find((f.subject.addr ?? f.subject.prefix)!, f.subject.pool ?? '')}>show {f.subject.addr ?? f.subject.prefix}</button>
        )}
      </p>
      <ul class="tree">
        {f.evidence.map((e, i) => (
          <li key={i}>
            {e.witness}: {e.text}
          </li>
        ))}
      </ul>
      <pre>{f.fix}</pre>
    </article>
  )
}
