// The page in a headless Chromium. test/system/page starts the servers and names them in the environment.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { chromium } from 'playwright-core'

const {
  CADASTRE_PAGE,
  CADASTRE_LARGE,
  CADASTRE_OPERATOR,
  CADASTRE_KUBECTL,
  CADASTRE_KUBECONFIG,
  CADASTRE_BIN,
  CADASTRE_SOCKET,
  CADASTRE_CHROMIUM,
  CADASTRE_PROFILE,
  CADASTRE_IMAGES,
} = process.env

let context
const complaints = []
const foreign = []

before(async () => {
  context = await chromium.launchPersistentContext(CADASTRE_PROFILE, {
    executablePath: CADASTRE_CHROMIUM,
    headless: true,
    viewport: { width: 1280, height: 860 },
    reducedMotion: 'reduce',
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  })
})

after(() => context?.close())

// open returns a page that notes every error and every request to another host.
async function open(url, colorScheme = 'light') {
  const page = await context.newPage()
  await page.emulateMedia({ colorScheme })
  page.on('console', (m) => {
    if (['error', 'warning'].includes(m.type()) && !m.text().includes('willReadFrequently')) complaints.push(m.text())
  })
  page.on('pageerror', (e) => complaints.push(String(e)))
  page.on('request', (r) => {
    if (new URL(r.url()).host !== new URL(url).host && !r.url().startsWith('data:')) foreign.push(r.url())
  })
  await page.goto(url)
  return page
}

const map = (page, prefix) => page.locator(`#map[data-prefix="${prefix}"]`)

// api asks the server as the page does.
const api = (page, path) => page.evaluate(async (p) => (await fetch(new URL(`../v1/${p}`, document.baseURI))).json(), path)

function cni(command, container) {
  return execFileSync(join(CADASTRE_BIN, 'cadastre-cni'), {
    input: JSON.stringify({ cniVersion: '1.1.0', name: 'pods', ipam: { type: 'cadastre-cni' } }),
    env: {
      CNI_COMMAND: command,
      CNI_CONTAINERID: container,
      CNI_NETNS: '/proc/self/ns/net',
      CNI_IFNAME: 'eth0',
      CNI_PATH: CADASTRE_BIN,
      CNI_ARGS: `IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-${container}`,
      CADASTRE_SOCKET,
    },
  }).toString()
}

// drawn reads the pixels of every cell: the number of pixels of each state's colour, and
// of the first row from the top that has the colour of the first state.
function drawn(page) {
  return page.evaluate(() => {
    const canvas = document.querySelector('#map')
    const { cols, rows, size, left } = canvas.dataset
    const style = getComputedStyle(document.documentElement)
    const states = ['held', 'infra', 'quarantined', 'cooling', 'excluded', 'reserved', 'draining', 'free', 'otherHeld', 'other', 'otherUnknown', 'empty']
    const names = new Map(
      states.map((s) => {
        const hex = parseInt(style.getPropertyValue(`--${s}`).trim().slice(1), 16)
        return [hex, s]
      }),
    )
    const ctx = canvas.getContext('2d')
    const side = Number(size) - 1
    const cells = []
    for (let i = 0; i < Number(cols) * Number(rows); i++) {
      const { data } = ctx.getImageData(Number(left) + (i % cols) * size, Math.floor(i / cols) * size, side, side)
      const counts = {}
      for (let p = 0; p < data.length; p += 4) {
        const s = names.get((data[p] << 16) | (data[p + 1] << 8) | data[p + 2])
        if (s) counts[s] = (counts[s] ?? 0) + 1
      }
      cells.push(counts)
    }
    return { cells, pixels: side * side }
  })
}

const order = ['quarantined', 'held', 'infra', 'cooling', 'excluded', 'reserved', 'draining', 'free']
const stateOf = (cell) => order.find((s) => cell?.[s]) ?? 'empty'
const most = (counts) => Object.entries(counts).sort((a, b) => b[1] - a[1])[0]?.[0]

for (const scheme of ['light', 'dark']) {
  test(`every address is drawn in the state that the API returns (${scheme})`, async () => {
    const page = await open(`${CADASTRE_LARGE}#pool=states&prefix=172.16.3.0/24`, scheme)
    await map(page, '172.16.3.0/24').waitFor()
    await page.locator(`html[data-theme=${scheme}]`).waitFor({ state: 'attached' })
    const part = await api(page, 'map?pool=states&prefix=172.16.3.0/24')
    const { cells } = await drawn(page)
    assert.equal(cells.length, 256)
    const byNumber = new Map(part.cells.map((c) => [c.cell, c]))
    const seen = new Set()
    cells.forEach((counts, i) => {
      const want = stateOf(byNumber.get(i))
      seen.add(want)
      assert.equal(most(counts), want, `address ${i}: ${JSON.stringify(counts)}`)
    })
    assert.deepEqual([...seen].sort(), ['cooling', 'excluded', 'free', 'held', 'infra', 'quarantined', 'reserved'])
    await page.close()
  })
}

test('blocks are filled as the API counts them', async () => {
  const page = await open(`${CADASTRE_LARGE}#pool=large&prefix=10.0.0.0/13`)
  await map(page, '10.0.0.0/13').waitFor()
  const part = await api(page, 'map?pool=large&prefix=10.0.0.0/13')
  const { cells, pixels } = await drawn(page)
  assert.equal(cells.length, 1024)
  const byNumber = new Map(part.cells.map((c) => [c.cell, c]))
  for (const [i, counts] of cells.entries()) {
    const c = byNumber.get(i)
    if (!c) {
      assert.equal(most(counts), 'empty', `cell ${i}`)
      continue
    }
    const share = (counts.held ?? 0) / pixels
    const row = 1.1 / Math.sqrt(pixels)
    assert.ok(Math.abs(share - (c.held ?? 0) / 512) < row + 0.06, `cell ${i}: ${share} of ${c.held}`)
  }
  await page.close()
})

test('the table has the cells of the map', async () => {
  const page = await open(`${CADASTRE_LARGE}#pool=states&prefix=172.16.3.0/24`)
  await map(page, '172.16.3.0/24').waitFor()
  const part = await api(page, 'map?pool=states&prefix=172.16.3.0/24')
  const table = page.getByRole('table', { name: 'Addresses of 172.16.3.0/24' })
  for (const c of part.cells.filter((x) => x.lease)) {
    const row = table.locator(`tr[data-cell="${c.cell}"]`)
    const text = await row.textContent()
    assert.ok(text.includes(c.lease.ip) && text.includes(c.lease.state) && text.includes(c.lease.pod ?? ''), text)
  }
  const free = part.cells.filter((c) => c.free).length
  const listed = await table.locator('tr:has(td:text-is("free"))').allTextContents()
  const last = (s) => Number(s.split('.').at(-1))
  const sum = listed.reduce((n, t) => {
    const [from, to] = t.replace('free', '').split(' to ').map(last)
    return n + ((to ?? from) - from + 1)
  }, 0)
  assert.equal(sum, free)
  await page.close()
})

test('clicks lead from the pools over a block to the explanation of an address', async () => {
  for (let i = 0; i < 30; i++) cni('ADD', `c${i}`)
  for (const i of [3, 10, 17, 24]) cni('DEL', `c${i}`)
  const page = await open(CADASTRE_PAGE)
  assert.ok(!page.url().includes('key='), 'the key is not left in the address')
  await page.getByText('node node-a, ready').waitFor()
  const overview = await api(page, 'map')
  const { held } = overview.pools.find((p) => p.name === 'default').counts
  assert.equal(held, 26)
  await page.getByRole('button', { name: '10.1.0.0/16' }).click()
  const grid = async () => {
    const { left, size } = await page.locator('#map').evaluate((m) => ({ ...m.dataset }))
    return { left: Number(left), size: Number(size) }
  }
  await page.getByRole('button', { name: 'All pools' }).waitFor() // the first screen has the same map
  await map(page, '10.1.0.0/16').waitFor()
  const s = await grid()
  await page.locator('#map').click({ position: { x: s.left + s.size * 1.5, y: s.size / 2 } }) // 10.1.1.0/24
  await map(page, '10.1.1.0/24').waitFor()
  const leases = await api(page, 'leases')
  const lease = leases.find((l) => l.podName === 'web-c1' && l.state === 'held')
  const last = Number(lease.ip.split('.')[3])
  const t = await grid()
  const middle = { x: t.left + ((last % 16) + 0.5) * t.size, y: (Math.floor(last / 16) + 0.5) * t.size }
  await page.locator('#map').hover({ position: middle })
  await page.locator('.tip', { hasText: `${lease.ip}: held, shop/web-c1` }).waitFor()
  await page.locator('#map').click({ position: middle })
  const tree = await api(page, `explain?address=${lease.ip}`)
  await page.locator('#explain', { hasText: 'shop/web-c1' }).filter({ hasText: tree.answer }).waitFor()
  assert.match(await page.locator('#cursor').textContent(), new RegExp(`^${lease.ip.replaceAll('.', '\\.')}: held, shop/web-c1`))
  await page.goBack()
  assert.ok(!page.url().includes('at='), page.url())
  await page.close()
})

test('the first screen has the map of the fullest range, and a strip of each', async () => {
  const page = await open(CADASTRE_PAGE)
  await map(page, '10.1.0.0/16').waitFor()
  const box = await page.locator('#map').boundingBox()
  assert.ok(box.y + 100 < page.viewportSize().height, `the map begins at ${box.y}`)
  const { pools } = await api(page, 'map')
  await page.waitForFunction(
    (n) => document.querySelectorAll('.strip').length === n,
    pools.reduce((n, p) => n + p.roots.length, 0),
  )
  const legend = await page.locator('.legend').boundingBox()
  assert.ok(legend.y < box.y, 'the legend is above the map')
  await page.close()
})

test('a cut link drops what cannot be read, and says so', async () => {
  for (const [hash, says, prefix] of [
    ['pool=default&prefix=foo', 'prefix=foo is no prefix', '10.1.0.0/16'],
    ['pool=default&prefix=10.1.1.0/2444', 'prefix=10.1.1.0/2444 is no prefix', '10.1.0.0/16'],
    ['pool=default&prefix=10.1.1.7/24', 'prefix=10.1.1.7/24 is no prefix', '10.1.0.0/16'],
    ['pool=default&prefix=10.1.1.0/24&at=zzz', 'at=zzz is no address', '10.1.1.0/24'],
    ['pool=default&prefix=10.1.1.0/24&at=10.9.9.9', 'at=10.9.9.9 is not in 10.1.1.0/24', '10.1.1.0/24'],
    ['pool=default&prefix=10.77.0.0/16', '10.77.0.0/16 is not in pool default', '10.1.0.0/16'],
    ['pool=defau', '', '10.1.0.0/16'],
  ]) {
    const page = await open(`${CADASTRE_PAGE.replace(/#.*/, '')}${CADASTRE_PAGE.includes('#') ? '' : '#'}${hash}`)
    await map(page, prefix).waitFor()
    if (says) await page.locator('#dropped', { hasText: says }).waitFor()
    await page.close()
  }
})

test('an address of a wide link is shown in its block', async () => {
  const page = await open(CADASTRE_PAGE)
  await page.evaluate(() => {
    location.hash = '#pool=default&prefix=10.1.0.0/16&at=10.1.1.2'
  })
  await map(page, '10.1.1.0/24').waitFor()
  await page.locator('#cursor', { hasText: '10.1.1.2: ' }).waitFor()
  await page.close()
})

test('the search moves nothing of the page', async () => {
  const page = await open(CADASTRE_PAGE)
  await map(page, '10.1.0.0/16').waitFor()
  const before = await page.locator('main').boundingBox()
  await page.locator('#search').fill('web')
  await page.locator('#found').waitFor()
  assert.deepEqual(await page.locator('main').boundingBox(), before)
  await page.close()
})

test('the map is sharp on a dense screen', async () => {
  const page = await open(CADASTRE_PAGE)
  const session = await context.newCDPSession(page)
  await session.send('Emulation.setDeviceMetricsOverride', { width: 1280, height: 860, deviceScaleFactor: 2, mobile: false })
  await page.reload()
  await map(page, '10.1.0.0/16').waitFor()
  const [dots, wide] = await page.locator('#map').evaluate((m) => [m.width, m.clientWidth])
  assert.equal(dots, 2 * wide)
  await page.close()
})

test('the theme follows the system until the button is pressed', async () => {
  const page = await open(CADASTRE_PAGE)
  await page.locator('html[data-theme=light]').waitFor({ state: 'attached' })
  await page.emulateMedia({ colorScheme: 'dark' })
  await page.locator('html[data-theme=dark]').waitFor({ state: 'attached' })
  await page.getByRole('button', { name: 'light' }).click()
  await page.locator('html[data-theme=light]').waitFor({ state: 'attached' })
  await page.close()
})

test('keys move, open, leave and search', async () => {
  const page = await open(`${CADASTRE_LARGE}#pool=states&prefix=172.16.3.0/24`)
  await map(page, '172.16.3.0/24').focus()
  await page.keyboard.press('ArrowRight')
  await page.keyboard.press('ArrowRight')
  await page.getByText('172.16.3.2: held, shop/web-2').waitFor()
  await page.keyboard.press('ArrowDown')
  await page.getByText('172.16.3.18: held, shop/web-18').waitFor()
  await page.keyboard.press('Enter')
  await page.locator('#explain', { hasText: '172.16.3.18' }).waitFor()
  await page.locator('#map').focus()
  await page.keyboard.press('Escape')
  await page.keyboard.press('Escape')
  await page.getByRole('heading', { name: 'Pools' }).waitFor()
  const found = async (text, option, place) => {
    const { hits } = await api(page, `map/search?q=${text}`)
    const prefix = place ?? hits[0].prefix.replace(/\d+\/32$/, '0/24')
    await page.keyboard.press('/')
    await page.keyboard.type(text)
    await page.getByRole('option', { name: option }).first().waitFor()
    await page.keyboard.press('Enter')
    await map(page, prefix).waitFor()
  }
  await found('172.16.3.101', /address 172\.16\.3\.101 .*quarantined/, '172.16.3.0/24')
  await page.getByText('172.16.3.101: quarantined').first().waitFor()
  await found('web-5d7c8b9f4-000300', /pod shop\/web-5d7c8b9f4-000300/)
  await found(`${'0'.repeat(61)}fff`, /container 0+fff/)
  await found('states', /pool states/, '172.16.3.0/24')
  await page.close()
})

test('an event appears, and the address is drawn, without a reload', async () => {
  const page = await open(CADASTRE_PAGE)
  await page.evaluate(() => {
    location.hash = '#pool=default&prefix=10.1.1.0/24'
  })
  await map(page, '10.1.1.0/24').waitFor()
  await page.locator('#stream', { hasText: 'live' }).waitFor()
  const ip = JSON.parse(cni('ADD', 'late')).ips[0].address.split('/')[0]
  const event = page.locator('#events li', { hasText: 'shop/web-late' })
  await event.waitFor()
  assert.match((await event.locator('summary').innerText()).trim(), new RegExp(`^[0-9:]+ Add Pod shop/web-late: ${ip}$`), 'one line of plain words')
  for (const text of await page.locator('#events summary').allInnerTexts()) assert.doesNotMatch(text, /\*|: 0(,|$)/, 'a resync names what there is')
  assert.ok(!(await event.innerText()).includes('ipam: '), 'the rest is hidden')
  await event.locator('summary').click()
  assert.match(await event.innerText(), new RegExp(`ipam: leased ${ip}`))
  const last = Number(ip.split('.')[3])
  await page.locator(`#cells tr[data-cell="${last}"]`, { hasText: 'shop/web-late' }).waitFor()
  assert.equal(most((await drawn(page)).cells[last]), 'held')
  cni('DEL', 'late')
  await page.locator(`#cells tr[data-cell="${last}"]`, { hasText: 'cooling' }).waitFor()
  assert.equal(most((await drawn(page)).cells[last]), 'cooling')
  await page.close()
})

test('changes and findings are those of the API', async () => {
  const page = await open(CADASTRE_PAGE)
  await page.getByRole('tab', { name: 'Last hour' }).click()
  const changes = await api(page, 'map/changes')
  const sum = (of) => changes.minutes.reduce((n, m) => n + m[of], 0)
  const text = await page.locator('#changes-sum').textContent()
  assert.ok(text.includes(`${sum('claimed')} claimed, ${sum('released')} released`), text)
  await page.locator('#changes canvas').waitFor()
  await page.getByRole('tab', { name: 'Findings' }).click()
  const findings = await api(page, 'map/findings')
  await page.locator('#findings p').first().waitFor()
  const shown = await page.locator('#findings').textContent()
  for (const f of findings.report.findings) assert.ok(shown.includes(f.text), f.text)
  await page.close()
})

// measure prints the sizes of answers, which are bounded, and the times of frames.
async function measure(page, what, paths) {
  const bytes = {}
  for (const path of paths) {
    bytes[path] = await page.evaluate(async (p) => (await (await fetch(new URL(`../v1/${p}`, document.baseURI))).text()).length, path)
    assert.ok(bytes[path] < 160 << 10, `${path}: ${bytes[path]} bytes`)
  }
  await page.locator('#map').focus()
  const frames = []
  for (let i = 0; i < 40; i++) {
    await page.keyboard.press('ArrowRight')
    frames.push(
      await page.evaluate(() => {
        const canvas = document.querySelector('#map')
        const begin = performance.now()
        canvas.getContext('2d').getImageData(0, 0, 1, 1) // waits for what was drawn
        return Number(canvas.dataset.frame) + performance.now() - begin
      }),
    )
  }
  frames.sort((a, b) => a - b)
  console.log(`${what}: bytes ${JSON.stringify(bytes)}; frame: median ${frames[20].toFixed(1)} ms, 95 % ${frames[37].toFixed(1)} ms`)
}

test('1000 blocks and 250 000 leases: answers are bounded, frames are drawn', async () => {
  const page = await open(`${CADASTRE_LARGE}#pool=large&prefix=10.0.0.0/13`)
  await map(page, '10.0.0.0/13').waitFor()
  await measure(page, 'an agent: 1000 blocks', [
    'map',
    'map?pool=large&prefix=10.0.0.0/13',
    'map?pool=large&prefix=10.0.4.0/23',
    'map/search?q=web',
    'map/changes',
  ])
  await page.close()
})

// The operator's page. Without a kube-apiserver there is none.
const operator = { skip: CADASTRE_OPERATOR ? false : 'NOT RUN: no operator was started' }

function kubectl(document, ...args) {
  execFileSync(CADASTRE_KUBECTL, [`--kubeconfig=${CADASTRE_KUBECONFIG}`, ...args], { input: JSON.stringify(document) })
}

test('operator: blocks of all nodes are filled with the addresses in use, unknown use is visible', operator, async () => {
  const page = await open(CADASTRE_OPERATOR)
  await page.getByText('cluster, this operator leads').waitFor()
  await page.getByRole('button', { name: '10.0.0.0/14' }).click()
  await map(page, '10.0.0.0/14').waitFor()
  const part = await api(page, 'map?pool=default&prefix=10.0.0.0/14')
  assert.equal(part.cells.length, 1000)
  const { cells, pixels } = await drawn(page)
  for (const c of part.cells) {
    const counts = cells[c.cell]
    if (c.otherUnknown) {
      assert.equal(most(counts), 'otherUnknown', `${c.node}: ${JSON.stringify(counts)}`)
      continue
    }
    const filled = 1 - (counts.other ?? 0) / pixels
    assert.ok(Math.abs(filled - (c.otherHeld ?? 0) / c.other) < 1.1 / Math.sqrt(pixels), `${c.node}: ${filled}`)
  }
  assert.equal(part.cells.filter((c) => c.otherUnknown).length, 20)
  await page.locator('#cells tr', { hasText: 'worker-1000' }).getByText('not known here').first().waitFor({ state: 'attached' })
  await page.getByRole('button', { name: 'All pools' }).click()
  await page
    .getByText(/the use of [0-9,]+ is not known here/)
    .first()
    .waitFor()
  await page.getByRole('button', { name: 'fd00::/108' }).click()
  await map(page, 'fd00::/108').waitFor()
  const v6 = await api(page, 'map?pool=default&prefix=fd00::/108')
  assert.ok(v6.counts.otherHeld > 0, 'a pool with two ranges shows the use of both')
  await page.close()
})

test('operator: pool, block, node, address and pod are explained', operator, async () => {
  const page = await open(`${CADASTRE_OPERATOR}#pool=default&prefix=10.0.0.0/14`)
  const explained = async (args, text) => {
    const tree = await api(page, `explain?${args}`)
    await page.locator('#explain', { hasText: text }).filter({ hasText: tree.answer }).waitFor()
  }
  await explained('block=10.0.0.0/14&of=default', 'block 10.0.0.0/14')
  await page.evaluate(() => {
    location.hash = '#pool=default'
  })
  await explained('pool=default', 'pool default')
  const search = async (text, option) => {
    await page.locator('#search').fill(text)
    await page.getByRole('option', { name: option }).first().click()
  }
  await search('worker-0005', /node worker-0005 10\.0\.5\.0\/24/)
  await explained('node=worker-0005', 'node worker-0005')
  await map(page, '10.0.5.0/24').waitFor()
  await search('10.0.5.9', /address 10\.0\.5\.9/)
  await explained('address=10.0.5.9', 'it is the address of pod shop/web-1')
  await search('shop/web-1', /pod shop\/web-1/)
  await explained('pod=shop/web-1', '10.0.5.9 is in block 10.0.5.0/24 of its node')
  await search('c0ffee01', /container c0ffee0123456789/)
  await explained('pod=shop/web-1', 'pod shop/web-1')
  await page.evaluate(() => {
    location.hash = '#pool=default&prefix=10.0.5.0/24'
  })
  await page.locator('#blocks').getByRole('button', { name: 'worker-0005' }).click()
  await explained('node=worker-0005', 'node worker-0005')
  await page.close()
})

test('operator: decisions appear with their outcome, without a reload', operator, async () => {
  const page = await open(CADASTRE_OPERATOR)
  await page.locator('#stream', { hasText: 'live' }).waitFor()
  await page.getByText('its decisions').waitFor()
  const node = (name) => kubectl({ apiVersion: 'v1', kind: 'Node', metadata: { name } }, 'apply', '-f', '-')
  const event = (...texts) => texts.reduce((l, hasText) => l.filter({ hasText }), page.locator('#events li'))
  node('node-a')
  await event('node has its CIDRs', 'node=node-a', 'nodeipam: done').first().waitFor()
  node('node-b')
  await event('node has its CIDRs', 'node=node-b').first().waitFor()
  node('node-c') // the range has two blocks
  await event('exhausted', 'node-c').locator('.error').first().waitFor()
  kubectl(null, 'delete', 'node', 'node-a')
  await event('node is gone; its CIDRs are released', 'node=node-a').first().waitFor()
  await event('node has its CIDRs', 'node=node-c').first().waitFor()
  await page.close()
})

test('operator: the decisions of the last hour are counted', operator, async () => {
  const page = await open(CADASTRE_OPERATOR)
  await page.getByRole('tab', { name: 'Last hour' }).click()
  const { decisions } = await api(page, 'map/changes')
  assert.ok(
    decisions.some((d) => d.count > 0 && d.failed === 0),
    'a decision is done',
  )
  const text = await page.locator('#changes table').innerText()
  for (const d of decisions) assert.ok(text.includes(`${d.by}: ${d.name}`), `no ${d.name} in ${text}`)
  assert.match(await page.locator('#changes-sum').innerText(), /^In the last hour \d+ decisions, of which \d+ failed\.$/)
  await page.close()
})

test('operator: findings are those of the last comparison, and lead to their place', operator, async () => {
  const page = await open(CADASTRE_OPERATOR)
  await page.getByRole('tab', { name: 'Findings' }).click()
  await page.locator('#findings article').first().waitFor()
  const { cluster } = await api(page, 'map/findings')
  assert.equal(cluster.state, 'current')
  const found = cluster.findings.find((f) => f.subject.prefix === '10.8.0.0/24')
  const article = page.locator('#findings article', { hasText: found.text })
  assert.ok((await article.first().textContent()).includes(found.fix))
  await article.first().getByRole('button', { name: 'show 10.8.0.0/24' }).click()
  await map(page, '10.8.0.0/24').waitFor()
  await page.locator('#explain', { hasText: found.number }).waitFor()
  await page.close()
})

test('operator: 1000 nodes and 250 000 leases: answers are bounded, frames are drawn', operator, async () => {
  const page = await open(`${CADASTRE_OPERATOR}#pool=default&prefix=10.0.0.0/14`)
  await map(page, '10.0.0.0/14').waitFor()
  await measure(page, 'the operator: 1000 nodes', ['map', 'map?pool=default&prefix=10.0.0.0/14', 'map/search?q=worker', 'map/findings', 'explain?pool=default'])
  await page.close()
})

// tree returns the roles and names that Chromium gives to a screen reader.
async function tree(page) {
  const session = await context.newCDPSession(page)
  const { nodes } = await session.send('Accessibility.getFullAXTree')
  await session.detach()
  return nodes
    .filter((n) => !n.ignored)
    .map((n) => ({
      role: n.role?.value,
      name: n.name?.value ?? '',
      focusable: n.properties?.some((p) => p.name === 'focusable' && p.value.value),
    }))
}

for (const [who, url, prefix, tabs] of [
  ['agent', CADASTRE_LARGE, 'large 10.0.0.0/13', ['Live events', 'Last hour', 'Findings']],
  ['operator', CADASTRE_OPERATOR, 'default 10.0.0.0/14', ['Live events', 'Last hour', 'Findings']],
]) {
  test(`${who}: a screen reader is told the role and the name of everything`, { skip: url ? false : 'NOT RUN: no operator was started' }, async () => {
    const [pool, cidr] = prefix.split(' ')
    const page = await open(`${url}#pool=${pool}&prefix=${cidr}`)
    await map(page, cidr).waitFor()
    await page.locator('#explain').waitFor()
    const all = await tree(page)
    const has = (role, name) =>
      assert.ok(
        all.some((n) => n.role === role && name.test(n.name)),
        `no ${role} ${name}`,
      )
    has('banner', /^$/)
    has('main', /^$/)
    has('navigation', /^Place$/)
    has('heading', /^Cadastre$/)
    has('combobox', /^Search by address, pod, container, node or pool$/)
    has('application', new RegExp(`^Map of ${cidr.replaceAll('.', '\\.')} in pool ${pool}: `))
    has('table', new RegExp(`of ${cidr.replaceAll('.', '\\.')}$`))
    has('columnheader', /^State$/)
    has('rowheader', /./)
    has('list', /^Legend$/)
    has('region', /^Explanation of /)
    has('tablist', /^What happens$/)
    has('tabpanel', /^Live events$/)
    assert.deepEqual(
      all.filter((n) => n.role === 'tab').map((n) => n.name),
      tabs,
    )
    const mute = all.filter((n) => (n.focusable || ['button', 'progressbar', 'progress', 'img'].includes(n.role)) && !n.name && n.role !== 'RootWebArea')
    assert.deepEqual(
      mute.map((n) => n.role),
      [],
      'everything that takes the focus has a name',
    )
    await page.close()
  })

  test(`${who}: the keyboard alone reaches the panels`, { skip: url ? false : 'NOT RUN: no operator was started' }, async () => {
    const page = await open(url)
    await page.getByRole('tab').first().waitFor()
    const focused = () => page.evaluate(() => document.activeElement?.id ?? '')
    for (let i = 0; i < 200 && (await focused()) !== 'tab-events'; i++) await page.keyboard.press('Tab')
    assert.equal(await focused(), 'tab-events')
    await page.keyboard.press('ArrowLeft')
    assert.equal(await focused(), 'tab-findings')
    await page.getByRole('tabpanel', { name: 'Findings' }).waitFor()
    await page.keyboard.press('ArrowRight')
    await page.getByRole('tabpanel', { name: 'Live events' }).waitFor()
    await page.keyboard.press('Tab')
    assert.match(await page.evaluate(() => document.activeElement.getAttribute('aria-label') ?? ''), /Events/, 'the next stop is the panel')
    await page.close()
  })
}

test('screenshots', { skip: CADASTRE_IMAGES ? false : 'CADASTRE_IMAGES is not set' }, async () => {
  const shots = [
    ['page-pool', `${CADASTRE_LARGE}#pool=large&prefix=10.0.0.0/13`, 'light', '10.0.0.0/13', 'findings'],
    ['page-block', `${CADASTRE_LARGE}#pool=states&prefix=172.16.3.0/24&at=172.16.3.101`, 'light', '172.16.3.0/24', 'findings'],
    ['page-node-dark', CADASTRE_PAGE, 'dark', '10.1.1.0/24', 'events'],
  ]
  for (const [name, url, colorScheme, prefix, tab] of shots) {
    const page = await open(url, colorScheme)
    if (!url.includes('#'))
      await page.evaluate((p) => {
        location.hash = `#pool=default&prefix=${p}`
      }, prefix)
    await map(page, prefix).waitFor()
    await page.locator(`#tab-${tab}`).click()
    await page.locator(`#${tab}`).waitFor()
    await page.locator('#explain').waitFor()
    await page.screenshot({ path: join(CADASTRE_IMAGES, `${name}.png`) })
    await page.close()
  }
})

test('the console has no error, and no other host was asked', () => {
  assert.deepEqual(complaints, [])
  assert.deepEqual(foreign, [])
})

test('the page may not ask another host', async () => {
  const page = await context.newPage()
  await page.goto(CADASTRE_LARGE)
  const other = new URL(CADASTRE_PAGE).origin
  const refused = await page.evaluate(
    (url) =>
      new Promise((resolve) => {
        document.addEventListener('securitypolicyviolation', (e) => resolve(e.effectiveDirective))
        fetch(url).catch(() => {})
      }),
    other,
  )
  assert.equal(refused, 'connect-src')
  await page.close()
})
