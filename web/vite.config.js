import { readFileSync } from 'node:fs'
import { defineConfig } from 'vite'

// licences adds the licences of the libraries that are part of the bundle.
function licences(names) {
  return {
    name: 'licences',
    generateBundle() {
      const source = names.map((n) => `${n}\n\n${readFileSync(`node_modules/${n}/LICENSE`, 'utf8').trim()}\n`).join('\n\n')
      this.emitFile({ type: 'asset', fileName: 'licences.txt', source })
    },
  }
}

// Names of files have no hash: the server answers with an ETag of the content.
export default defineConfig({
  root: 'src',
  base: './',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  plugins: [licences(['preact', 'uplot'])],
  build: {
    outDir: process.env.PAGE_OUT ?? '../dist',
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: { entryFileNames: 'page.js', chunkFileNames: '[name].js', assetFileNames: '[name][extname]' },
    },
  },
})
