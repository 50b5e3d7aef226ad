// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// MaxIntents is how many DELs may wait for an agent that is away.
const MaxIntents = 1024

// Intent is a DEL that found no agent. The agent applies it before it serves,
// and before the next ADD of the same attachment.
type Intent struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// IntentDir is where the intents for the agent of a socket are.
func IntentDir(socket string) string { return filepath.Join(filepath.Dir(socket), "del") }

// Name is the intent's file: the same for the same attachment.
func (in Intent) Name() string {
	h := fnv.New128a()
	h.Write([]byte(in.Network + "\x00" + in.ContainerID + "\x00" + in.IfName))
	return hex.EncodeToString(h.Sum(nil)) + ".json"
}

// Write makes the intent durable in dir.
func (in Intent) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep the DEL for the agent: %w", err)
	}
	path := filepath.Join(dir, in.Name())
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("keep the DEL for the agent: %w", err)
		}
		waiting := 0
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".json") {
				waiting++
			}
		}
		if waiting >= MaxIntents {
			return fmt.Errorf("keep the DEL for the agent: %d wait in %s already", waiting, dir)
		}
	}
	data, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if err := writeDurably(dir, path, data); err != nil {
		return fmt.Errorf("keep the DEL for the agent: %w", err)
	}
	return nil
}

func writeDurably(dir, path string, data []byte) error {
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Remove forgets the intent; one that is not there is no error.
func (in Intent) Remove(dir string) error {
	if err := os.Remove(filepath.Join(dir, in.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget a DEL that was applied: %w", err)
	}
	return nil
}

// Waiting is true where the intent is in dir.
func (in Intent) Waiting(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, in.Name()))
	return err == nil
}

// ReadIntents reads all intents of dir, by name. Files that are none are
// reported and left alone. A dir that is not there has none.
func ReadIntents(dir string) ([]Intent, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the DELs that wait: %w", err)
	}
	var intents []Intent
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".new-") {
			continue
		}
		var in Intent
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil {
			err = json.Unmarshal(data, &in)
		}
		if err == nil && in.Name() != e.Name() {
			err = errors.New("its name does not fit its content")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Join(dir, e.Name()), err))
			continue
		}
		intents = append(intents, in)
	}
	return intents, errors.Join(errs...)
}
