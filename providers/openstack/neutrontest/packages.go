// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package neutrontest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// CacheVariable names the environment variable with the folder for the packages.
const CacheVariable = "CADASTRE_NEUTRON_CACHE"

// ErrUnavailable is wrapped if this machine cannot run Neutron.
var ErrUnavailable = errors.New("the Neutron server is not available here")

// software is an unpacked or installed Neutron with MariaDB. Root is "/" if it is installed.
type software struct{ root string }

const (
	libraries = "usr/lib/python3/dist-packages"
	paste     = "usr/share/neutron-common/api-paste.ini"
	database  = "usr/sbin/mariadbd"
)

func (s software) path(parts ...string) string {
	return filepath.Join(append([]string{s.root}, parts...)...)
}

func (s software) complete() bool {
	for _, p := range []string{libraries + "/neutron/server", libraries + "/neutron/plugins/ml2", paste, database} {
		if _, err := os.Stat(s.path(p)); err != nil {
			return false
		}
	}
	return true
}

// python returns the interpreter that the packages are made for.
func (s software) python() (string, error) {
	for _, p := range []string{"/usr/bin/python3", s.path("usr/bin/python3")} {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%w: neither /usr/bin/python3 nor %s exists", ErrUnavailable, s.path("usr/bin/python3"))
}

// environment returns what the interpreter needs to find the packages.
func (s software) environment(cache string) []string {
	env := append(os.Environ(), "PYTHONPYCACHEPREFIX="+filepath.Join(cache, "pycache"), "PYTHONNOUSERSITE=1")
	if s.root == "/" {
		return env
	}
	var native []string
	for _, pattern := range []string{"usr/lib/*-linux-gnu*", "lib/*-linux-gnu*"} {
		if found, err := filepath.Glob(s.path(pattern)); err == nil {
			native = append(native, found...)
		}
	}
	return append(env, "PYTHONPATH="+s.path(libraries), "LD_LIBRARY_PATH="+strings.Join(native, ":"))
}

func cacheDir() (string, error) {
	if dir := os.Getenv(CacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w: no cache folder (set %s): %w", ErrUnavailable, CacheVariable, err)
	}
	return filepath.Join(dir, "cadastre", "neutron"), nil
}

// provide returns the installed software, or the unpacked one of the cache, which it fills.
// Processes that do so at the same time wait for each other.
func provide(ctx context.Context, cache string) (software, error) {
	if s := (software{"/"}); s.complete() {
		return s, nil
	}
	if err := os.MkdirAll(
		filepath.Join(cache, "archives", "partial"),
		0o755,
	); err != nil { //nolint:gosec // packages are public
		return software{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	unlock, err := lock(filepath.Join(cache, "lock"))
	if err != nil {
		return software{}, fmt.Errorf("%w: lock %s: %w", ErrUnavailable, cache, err)
	}
	defer unlock()
	s := software{filepath.Join(cache, "root")}
	if s.complete() {
		return s, nil
	}
	if err := download(ctx, cache); err != nil {
		return software{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err := unpack(ctx, cache, s.root); err != nil {
		return software{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if !s.complete() {
		return software{}, fmt.Errorf("%w: the packages in %s lack Neutron, ML2 or MariaDB", ErrUnavailable, cache)
	}
	return s, nil
}

func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil // the lock goes with it
}

// download fetches the packages with the machine's package lists, and with new ones in the
// cache if these are missing or too old.
func download(ctx context.Context, cache string) error {
	for _, program := range []string{"apt-get", "dpkg"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("download the Debian packages: %w", err)
		}
	}
	common := []string{
		"-qq", "-y",
		"-o", "Debug::NoLocking=true",
		"-o", "APT::Sandbox::User=root",
		"-o", "Acquire::Retries=2",
		"-o", "Dir::Cache::archives=" + filepath.Join(cache, "archives") + "/",
	}
	install := []string{
		"--no-install-recommends", "--download-only", "install",
		"neutron-server", "neutron-plugin-ml2", "mariadb-server-core",
	}
	err := run(ctx, "apt-get", append(common, install...)...)
	if err == nil {
		return nil
	}
	lists := filepath.Join(cache, "lists")
	if mk := os.MkdirAll(filepath.Join(lists, "partial"), 0o755); mk != nil { //nolint:gosec // package lists are public
		return errors.Join(err, mk)
	}
	common = append(common,
		"-o", "Dir::State::lists="+lists+"/",
		"-o", "Dir::Cache::pkgcache=",
		"-o", "Dir::Cache::srcpkgcache=",
	)
	if again := run(ctx, "apt-get", append(common, "update")...); again != nil {
		return errors.Join(err, again)
	}
	return run(ctx, "apt-get", append(common, install...)...)
}

// unpack unpacks all downloaded packages into root, which appears when it is complete.
func unpack(ctx context.Context, cache, root string) error {
	packages, err := filepath.Glob(filepath.Join(cache, "archives", "*.deb"))
	if err != nil {
		return err
	}
	part := root + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	for _, p := range packages {
		if err := run(ctx, "dpkg", "-x", p, part); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	return os.Rename(part, root)
}

func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
