package daemon

import (
	"errors"
	"fmt"
	"path/filepath"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/folder"
	"vipd/store"
	"vipd/store/statedir"
	"vipd/store/tomlfile"
)

// StartConfig returns the configuration to start with. If the file is invalid, or is empty without
// allowEmpty, it returns the last valid configuration that a previous vipd used, and mistake is the
// reason. As a result, services continue after a restart, just as they do after a reload of such a
// file. If the file is invalid and no valid configuration is saved, err matches ErrConfig.
func StartConfig(file string, allowEmpty bool) (c config.Config, mistake, err error) {
	c, problems, err := config.Load(file)
	if err != nil {
		return c, nil, configError{err}
	}
	mistake = config.Unusable(problems)
	empty := mistake == nil && !allowEmpty && isEmpty(file)
	if mistake == nil && !empty {
		return c, nil, nil
	}
	dir := statedir.New(stateDir(file, &c), func() {})
	if err := dir.Check(folder.CheckFiles); err != nil {
		return c, nil, configError{errors.Join(mistake, fmt.Errorf("state_dir: %w", err))}
	}
	if kept := tomlfile.KeptSettings(dir, file); kept != nil {
		last, wrong := config.Decode(kept)
		switch {
		case config.Unusable(wrong) != nil:
		case empty:
			return last, fmt.Errorf("%s is empty; if it is meant to be empty, run vipctl reload --allow-empty", file), nil
		default:
			return last, mistake, nil
		}
	}
	if empty {
		return c, nil, nil
	}
	return c, nil, configError{mistake}
}

// stateDir returns the state_dir of c. If the file has an error, it reads state_dir from the lines
// that can be decoded.
func stateDir(file string, c *config.Config) string {
	var line struct {
		StateDir string `toml:"state_dir"`
	}
	text, _ := tomlfile.ReadFile(file) // an unreadable file yields the default
	tomlfile.DecodeLines(text, "state_dir", &line)
	switch {
	case line.StateDir == "":
		return c.StateDir
	case filepath.IsAbs(line.StateDir):
		return line.StateDir
	}
	return filepath.Join(filepath.Dir(file), line.StateDir)
}

// isEmpty reports whether a configuration file can be read and contains at most comments.
func isEmpty(file string) bool {
	text, err := tomlfile.ReadFile(file)
	if err != nil {
		return false
	}
	doc, _ := tomlfile.Parse(file, text)
	return doc != nil && len(doc.Tree()) == 0
}

// usable reports whether the configuration file is valid again and s was read from it.
func (d *Daemon) usable(s *store.Snapshot) bool {
	_, problems, err := config.Load(d.ConfigFile)
	if err != nil || config.Unusable(problems) != nil {
		return false
	}
	stays := s.Services.Len() > 0 || s.Settings != nil && len(s.Settings.Tree()) > 0
	return !isEmpty(d.ConfigFile) || !stays
}

// startProblems returns a problem while vipd uses the last valid configuration instead of the file.
func (d *Daemon) startProblems() []balancer.Problem {
	if !d.fileUnusable.Load() {
		return nil
	}
	return []balancer.Problem{{
		Severity: balancer.SeverityWarning, Origin: balancer.Origin{File: d.ConfigFile},
		Text: "vipd started with the last good configuration because this file can't be used; fix it, and restart vipd if \"vipctl status\" asks for a restart",
	}}
}

// ErrConfig matches an error of New (errors.Is) if the configuration can't be read or used. Another
// attempt will also fail until the configuration is fixed.
var ErrConfig = errors.New("the configuration can't be used")

// checkEmptied returns an error if the configuration is empty although a previous vipd left service
// addresses on the host. The cause may be a power failure or a full disk. The addresses stay until
// the file is fixed.
func (d *Daemon) checkEmptied() error {
	if d.AllowEmpty || d.mistake != nil || !d.host.Inherited() || !isEmpty(d.ConfigFile) {
		return nil
	}
	return configError{fmt.Errorf("%s is empty, but this host still has services from an earlier vipd. Restore the file. If it is meant to be "+
		"empty, run vipd --allow-empty once, or vipctl cleanup", d.ConfigFile)}
}

type configError struct{ error }

func (e configError) Is(target error) bool { return target == ErrConfig }
func (e configError) Unwrap() error        { return e.error }
