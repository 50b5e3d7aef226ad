// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// MaxIntents limits the number of DELs that wait for an agent.
const MaxIntents = 1024

// maxIntentSize limits the size of one file: several times the longest names.
const maxIntentSize = 16 << 10

// LockFile is the file in a run directory by which an agent marks it as its own.
const LockFile = "agent.lock"

// Names in a directory of intents that are not intents.
const (
	unfinished = ".new-"    // being written
	setAside   = "refused-" // by SetAside
)

// Intent holds a DEL that found no agent. The agent applies it before it serves requests,
// and before the next ADD of the same attachment.
type Intent struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	Began       Began  `json:"began,omitzero"` // zero: not known
}

// Began is the time at which a DEL began: it frees no lease of a later ADD.
type Began struct {
	BootID string        `json:"boot"`
	Uptime time.Duration `json:"uptime"` // ns since that boot
}

// IntentDir returns the directory of the intents for the agent of a socket.
func IntentDir(socket string) string { return filepath.Join(filepath.Dir(socket), "del") }

// Name returns the name of the intent's file, which follows from the attachment.
func (in Intent) Name() string {
	h := fnv.New128a()
	h.Write([]byte(in.Network + "\x00" + in.ContainerID + "\x00" + in.IfName))
	return hex.EncodeToString(h.Sum(nil)) + ".json"
}

// CheckDir fails unless dir is a directory that the user uid owns, and that no
// other user may write to.
func CheckDir(dir string, uid int) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	return checkDir(dir, info, uid)
}

func checkDir(dir string, info fs.FileInfo, uid int) error {
	switch owner, mode := ownerOf(info), info.Mode().Perm(); {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case owner != uid:
		return fmt.Errorf("directory %s is owned by user %d and has mode %04o: "+
			"it must be owned by user %d, and mode 0700 would be right", dir, owner, mode, uid)
	case mode&0o022 != 0:
		return fmt.Errorf("directory %s is owned by user %d and has mode %04o, so other users may write to it: "+
			"mode 0700 would be right", dir, owner, mode)
	}
	return nil
}

// ownerOf returns the user ID of a file's owner, -1 if it is not known.
func ownerOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// checkMarked fails unless dir is the directory of intents in a run directory with an
// agent's lock file. All three must belong to one user, the agent's, whose ID it returns.
func checkMarked(dir string) (uid int, err error) {
	run := filepath.Dir(dir)
	lock, err := os.Lstat(filepath.Join(run, LockFile))
	if err == nil && !lock.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", filepath.Join(run, LockFile))
	}
	if err == nil {
		uid = ownerOf(lock)
		err = CheckDir(run, uid)
	}
	if err == nil {
		err = CheckDir(dir, uid)
	}
	if err != nil {
		return 0, fmt.Errorf("no agent reads %s: %w", dir, err)
	}
	return uid, nil
}

// Write stores the intent durably in dir, which must belong to an agent: a DEL that no
// agent reads would be lost.
func (in Intent) Write(dir string) error {
	uid, err := checkMarked(dir)
	if err != nil {
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
			if isIntent(e.Name()) && strings.HasSuffix(e.Name(), ".json") {
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
	if err := writeDurably(path, data, uid); err != nil {
		return fmt.Errorf("keep the DEL for the agent: %w", err)
	}
	return nil
}

// writeDurably writes a file of mode 0600 for the user uid: an agent that is not
// root cannot read a file of root.
func writeDurably(path string, data []byte, uid int) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, unfinished+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && uid != os.Geteuid() {
		err = f.Chown(uid, -1)
	}
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
	defer func() { _ = d.Close() }() // it was only read
	return d.Sync()
}

// Remove removes the intent. A missing one is not an error.
func (in Intent) Remove(dir string) error {
	if err := os.Remove(filepath.Join(dir, in.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a DEL that was applied: %w", err)
	}
	return nil
}

// Waiting reports whether an intent of the same attachment is in dir.
func (in Intent) Waiting(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, in.Name()))
	return err == nil
}

// Read returns the intent of the same attachment in dir, as ReadIntents does. found is
// false if there is none, or a file that ReadIntents refuses.
func (in Intent) Read(dir string, uid int) (_ Intent, found bool, err error) {
	intents, _, err := readIntents(dir, uid, in.Name())
	if err != nil || len(intents) == 0 {
		return Intent{}, false, err
	}
	return intents[0], true, nil
}

// Refused describes a file among the intents that is refused.
type Refused struct {
	Name string // of the file
	Err  error
}

// ReadIntents reads all intents of dir, sorted by name, for an agent of the user uid. It
// accepts small regular files that this user or root owns and that have one name. It
// follows no link, waits for no pipe, and does not move the files that it refuses. A
// missing dir has no intents. The error is about files that could not be read this time:
// they may be intents, so they are not refused.
func ReadIntents(dir string, uid int) (intents []Intent, refused []Refused, err error) {
	return readIntents(dir, uid, "")
}

// readIntents is ReadIntents of one file; "": of all.
func readIntents(dir string, uid int, only string) (intents []Intent, refused []Refused, err error) {
	fail := func(err error) ([]Intent, []Refused, error) {
		return nil, nil, fmt.Errorf("read the DELs that wait: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return fail(err)
	}
	defer func() { _ = root.Close() }() // it was only read
	info, err := root.Stat(".")
	if err == nil {
		err = checkDir(dir, info, uid)
	}
	if err != nil {
		return fail(err)
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return fail(err)
	}
	for _, e := range entries {
		if !isIntent(e.Name()) || only != "" && e.Name() != only {
			continue
		}
		in, rerr := readIntent(root, e.Name(), uid)
		for range maxReplaced {
			if !errors.Is(rerr, errReplaced) {
				break
			}
			in, rerr = readIntent(root, e.Name(), uid)
		}
		_, bad := errors.AsType[refusal](rerr)
		switch path := filepath.Join(dir, e.Name()); {
		case rerr == nil:
			intents = append(intents, in)
		case bad:
			refused = append(refused, Refused{e.Name(), fmt.Errorf("%s: %w", path, rerr)})
		case !errors.Is(rerr, fs.ErrNotExist): // else it was applied or withdrawn meanwhile
			err = errors.Join(err, fmt.Errorf("read the DEL that waits in %s: %w", path, rerr))
		}
	}
	return intents, refused, err
}

// refusal holds the reason why a file is not an intent.
type refusal string

func (r refusal) Error() string { return string(r) }

func refuse(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

// errReplaced is the error of an intent that was written again while it was read: a
// runtime repeats a DEL.
var errReplaced = errors.New("it was replaced while it was read")

// maxReplaced limits the immediate attempts to read a replaced intent.
const maxReplaced = 10

func isIntent(name string) bool {
	return !strings.HasPrefix(name, unfinished) && !strings.HasPrefix(name, setAside)
}

// readIntent reads one file. It checks the file before it opens it, because opening a
// device may have an effect, and again afterwards, because the name may be another file's.
func readIntent(root *os.Root, name string, uid int) (in Intent, err error) {
	before, err := root.Lstat(name)
	if err == nil {
		err = checkIntentFile(before, uid)
	}
	if err != nil {
		return in, err
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return in, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return in, err
	}
	if !os.SameFile(before, info) {
		return in, errReplaced
	}
	if err := checkIntentFile(info, uid); err != nil {
		return in, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxIntentSize))
	if err != nil {
		return in, err
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return in, refuse("%v", err)
	}
	if in.Name() != name {
		return in, refuse("its name does not fit its content")
	}
	return in, nil
}

func checkIntentFile(info fs.FileInfo, uid int) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch owner := ownerOf(info); {
	case !ok || !info.Mode().IsRegular():
		return refuse("it is of type %s: an intent is a regular file", info.Mode().Type())
	case owner != uid && owner != 0:
		return refuse("it is owned by user %d: an intent is owned by user %d or by root", owner, uid)
	case st.Nlink == 0: // another file has its name since it was found
		return errReplaced
	case st.Nlink != 1:
		return refuse("it has %d names: an intent has one", st.Nlink)
	case info.Size() > maxIntentSize:
		return refuse("it has %d bytes: an intent has at most %d", info.Size(), maxIntentSize)
	}
	return nil
}

// SetAside renames a refused file, so that it is reported once and does not count as an
// intent. It returns the new path.
func SetAside(dir, name string) (string, error) {
	path := filepath.Join(dir, setAside+name)
	if err := os.Rename(filepath.Join(dir, name), path); err != nil {
		return "", fmt.Errorf("set aside a file that is not an intent: %w", err)
	}
	return path, nil
}
