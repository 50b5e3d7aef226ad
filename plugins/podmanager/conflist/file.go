// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// FileName is the name of the list. It was that of the list with bridge which earlier
// versions of k8s/ installed: the agent replaces it.
const FileName = "10-cadastre.conflist"

// mode of the list: a runtime is root, and benchmarks of clusters want no other reader.
const mode fs.FileMode = 0o600

// Write puts a list into a folder and reports whether it was not there in this form. When
// it returns without an error, the list is durable.
func Write(dir string, data []byte) (changed bool, err error) {
	path := filepath.Join(dir, FileName)
	info, err := os.Lstat(path)
	if err == nil && info.Mode() == mode {
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
			return false, nil
		}
	}
	if err := replace(dir, path, data); err != nil {
		return false, fmt.Errorf("write the CNI list %s: %w", path, err)
	}
	return true, nil
}

// replace writes a file beside path and renames it.
func replace(dir, path string, data []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as packages of runtimes make it: programs list it
		return err
	}
	// A runtime takes every file that ends in .conf, .conflist or .json. CreateTemp gives it mode 0600.
	tmp, err := os.CreateTemp(dir, "."+FileName+".*.tmp")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Before returns the names of the files that a runtime prefers to the list, in their
// order: it takes the first file of the folder.
func Before(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for other CNI lists: %w", err)
	}
	for _, e := range entries {
		read := slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name()))
		if read && !e.IsDir() && strings.Compare(e.Name(), FileName) < 0 {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// Remove removes the list if its main plugin is cadastre-cni, and what an interrupted Write
// has left. It reports whether there was a list of ours.
func Remove(dir string) (removed bool, err error) {
	path := filepath.Join(dir, FileName)
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case err != nil:
		return false, fmt.Errorf("remove the CNI list: %w", err)
	case !IsOurs(data):
		return false, fmt.Errorf("remove the CNI list: %s does not name %s as its main plugin: remove it by hand",
			path, cni.PluginType)
	default:
		if err := os.Remove(path); err != nil {
			return false, fmt.Errorf("remove the CNI list: %w", err)
		}
		removed = true
	}
	rests, _ := filepath.Glob(filepath.Join(dir, "."+FileName+".*.tmp")) // the pattern is well-formed
	for _, rest := range rests {
		if rerr := os.Remove(rest); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	if !removed && len(rests) == 0 {
		return false, nil
	}
	return removed, errors.Join(err, syncDir(dir))
}
