import { useEffect, useRef, useState } from 'preact/hooks'
import { get, type Hit, type Hits } from './api'

// Search finds addresses, pods, containers, nodes and pools while the user writes.
export function Search({ go }: { go: (hit: Hit) => void }) {
  const [text, setText] = useState('')
  const [hits, setHits] = useState<Hits>()
  const [at, setAt] = useState(0)
  const input = useRef<HTMLInputElement>(null)

  useEffect(() => {
    if (text.trim() === '') return setHits(undefined)
    const abort = new AbortController()
    const timer = setTimeout(() => {
      get<Hits>('map/search', { q: text }, abort.signal).then(
        (h) => {
          setHits(h)
          setAt(0)
        },
        () => {}, // a newer text is being looked for, or the server is away, which the header says
      )
    }, 120)
    return () => {
      clearTimeout(timer)
      abort.abort()
    }
  }, [text])

  useEffect(() => {
    const focus = (e: KeyboardEvent) => {
      if (e.key !== '/' || e.target instanceof HTMLInputElement) return
      e.preventDefault()
      input.current?.focus()
    }
    addEventListener('keydown', focus)
    return () => removeEventListener('keydown', focus)
  }, [])

  const choose = (hit: Hit | undefined) => {
    if (!hit) return
    go(hit)
    setHits(undefined)
    setText('')
    input.current?.blur()
  }
  const keys = (e: KeyboardEvent) => {
    const n = hits?.hits.length ?? 0
    if (e.key === 'ArrowDown') setAt((at + 1) % Math.max(n, 1))
    else if (e.key === 'ArrowUp') setAt((at + n - 1) % Math.max(n, 1))
    else if (e.key === 'Enter') choose(hits?.hits[at])
    else if (e.key === 'Escape') {
      setHits(undefined)
      setText('')
    } else return
    e.preventDefault()
  }
  return (
    <div class="search">
      <input
        ref={input}
        id="search"
        type="search"
        value={text}
        placeholder="address, pod, container, node, pool"
        aria-label="Search by address, pod, container, node or pool"
        role="combobox"
        autocomplete="off"
        aria-expanded={hits !== undefined}
        aria-controls="hits"
        aria-activedescendant={hits?.hits[at] ? `hit-${at}` : undefined}
        onInput={(e) => setText(e.currentTarget.value)}
        onKeyDown={keys}
      />
      <div class="results">
        {hits && (
          <ul id="hits" role="listbox" aria-label="Results">
            {hits.hits.map((h, i) => (
              <li key={h.kind + h.pool + h.text} id={`hit-${i}`} role="option" aria-selected={i === at} onClick={() => choose(h)}>
                <span class="dim">{h.kind}</span> {h.text}{' '}
                <span class="dim">
                  {h.state ?? ''} {h.pool}
                </span>
              </li>
            ))}
          </ul>
        )}
        {hits && (
          <p id="found" class="small" role="status">
            {hits.hits.length === 0 ? 'Nothing is found.' : `${hits.hits.length} results.`}
            {hits.more && ' There are more: write more of the name.'}
            {hits.problem && ` ${hits.problem}`}
          </p>
        )}
      </div>
    </div>
  )
}
