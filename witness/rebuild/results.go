// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rebuild

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cadastre/cadastre/witness"
)

// Results reads a result cache of libcni again and again. It decodes a file once, and again when
// the file has changed. Its methods must not be called concurrently.
type Results struct {
	dir, plugin string
	decoded     map[string]decodedResult // by file
}

// decodedResult holds the attachment of a file, as of a size and a time of change.
type decodedResult struct {
	size       int64
	changed    time.Time
	attachment *witness.Attachment // nil: of another plugin, or damaged
}

// NewResults returns a reader of a folder, such as /var/lib/cni/results, for the attachments of
// our plugin.
func NewResults(dir, plugin string) *Results { return &Results{dir: dir, plugin: plugin} }

// Read returns the attachments. A folder that does not exist has none. A file that cannot be
// decoded, as a crash leaves it, names no namespace; a folder that cannot be read is an error.
func (r *Results) Read() (all []witness.Attachment, err error) {
	entries, err := os.ReadDir(r.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the CNI results: %w", err)
	}
	now := make(map[string]decodedResult, len(entries))
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // removed meanwhile, or not a result
		}
		d, known := r.decoded[e.Name()]
		if !known || d.size != info.Size() || !d.changed.Equal(info.ModTime()) {
			text, err := os.ReadFile(filepath.Join(r.dir, e.Name()))
			switch {
			case errors.Is(err, fs.ErrNotExist):
				continue
			case err != nil:
				return nil, fmt.Errorf("read the CNI results: %w", err)
			}
			d = decodedResult{size: info.Size(), changed: info.ModTime()}
			d.attachment, _ = decodeCached(text, r.plugin)
		}
		now[e.Name()] = d
		if d.attachment != nil {
			all = append(all, *d.attachment)
		}
	}
	r.decoded = now
	return all, nil
}
