// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// LookAtSources looks at every source file below root. The cache of go test reuses
// a result until a file changes that the running test has looked at, and knows
// nothing of what the compiler reads. A test of built programs therefore calls it
// while it runs: what TestMain looks at before m.Run does not count.
func LookAtSources(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go") || d.Name() == "go.mod":
			_, err = os.Stat(path)
		}
		return err
	})
}
