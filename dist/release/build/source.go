// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package build builds the programs of a release so that every machine with the same
// version of Go gets the same bytes: the paths of the machine, its time, its environment
// and the state of its caches have no influence.
//
// The functions keep no state. They run go and git, whose output is in their errors.
package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cadastre/cadastre/internal/version"
)

// Source describes the tree that programs are built from.
type Source struct {
	Root     string // an absolute path
	Version  string // without "v"
	Commit   string // whole; "" if unknown
	Modified bool   // the tree differs from Commit
	// Time is in all archives: SOURCE_DATE_EPOCH, else the time of the commit.
	Time time.Time
}

// epochVariable is the variable of reproducible-builds.org for the time of a build.
const epochVariable = "SOURCE_DATE_EPOCH"

// Read describes the tree at root. Without a wanted version it is the tag v... of the
// commit, or version.Next. A tree without git needs SOURCE_DATE_EPOCH.
func Read(ctx context.Context, root, wanted string, getenv func(string) string) (s Source, err error) {
	if s.Root, err = filepath.Abs(root); err != nil {
		return s, err
	}
	epoch := getenv(epochVariable)
	if _, err := os.Stat(filepath.Join(s.Root, ".git")); err == nil {
		if err := s.readGit(ctx, &wanted, &epoch); err != nil {
			return s, err
		}
	}
	if epoch == "" {
		return s, fmt.Errorf(
			"%s is not a git repository: set %s to the seconds of its time since 1970",
			s.Root,
			epochVariable,
		)
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds < 0 {
		return s, fmt.Errorf("parse %s %q: want seconds since 1970, such as 1700000000", epochVariable, epoch)
	}
	s.Time = time.Unix(seconds, 0).UTC()
	s.Version = strings.TrimPrefix(wanted, "v")
	if s.Version == "" {
		s.Version = version.Next
	}
	return s, s.validate()
}

// readGit reads commit, changes, and what the caller has not chosen.
func (s *Source) readGit(ctx context.Context, wanted, epoch *string) (err error) {
	if s.Commit, err = s.git(ctx, "rev-parse", "HEAD"); err != nil {
		return err
	}
	changes, err := s.git(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	s.Modified = changes != ""
	if *epoch == "" {
		if *epoch, err = s.git(ctx, "log", "-1", "--format=%ct"); err != nil {
			return err
		}
	}
	if *wanted != "" {
		return nil
	}
	tags, err := s.git(ctx, "tag", "--points-at", "HEAD", "--list", "v[0-9]*")
	switch all := strings.Fields(tags); {
	case err != nil:
		return err
	case len(all) > 1:
		return fmt.Errorf("the commit has the tags %s: choose one with VERSION", strings.Join(all, ", "))
	case len(all) == 1:
		*wanted = all[0]
	}
	return nil
}

func (s *Source) git(ctx context.Context, args ...string) (string, error) {
	return output(ctx, s.Root, nil, "git", args...)
}

func (s *Source) validate() error {
	if ok, _ := regexp.MatchString(`^\d+\.\d+\.\d+(-[0-9a-z]+(\.[0-9a-z]+)*)?$`, s.Version); !ok {
		return fmt.Errorf("the version %q: want MAJOR.MINOR.PATCH, such as 1.2.0 or 1.2.0-rc.1", s.Version)
	}
	if s.Final() && s.Modified {
		return errors.New("the tree has changes that are not committed: commit them, or choose a version such as " +
			s.Version + "-dev")
	}
	return nil
}

// Final reports whether the version is one for users, not a version on the way to it.
func (s *Source) Final() bool { return !strings.Contains(s.Version, "-") }

// output runs a program for its standard output without the end of the last line.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
