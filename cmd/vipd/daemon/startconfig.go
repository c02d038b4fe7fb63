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

// StartConfig returns the configuration to start with. If the file has an error, or is empty and may not be, that is the last good one of
// an earlier vipd, and mistake says why: a restart serves on, as a reload of such a file does. Without one the error is ErrConfig.
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
			return last, fmt.Errorf("%s is empty; if it is meant to be empty: vipctl reload --allow-empty", file), nil
		default:
			return last, mistake, nil
		}
	}
	if empty {
		return c, nil, nil
	}
	return c, nil, configError{mistake}
}

// stateDir is the state_dir of c, or the one that a readable line of the file names: the file may not be valid as a whole.
func stateDir(file string, c *config.Config) string {
	var line struct {
		StateDir string `toml:"state_dir"`
	}
	text, _ := tomlfile.ReadFile(file) // one that can't be read names nothing
	tomlfile.DecodeLines(text, "state_dir", &line)
	switch {
	case line.StateDir == "":
		return c.StateDir
	case filepath.IsAbs(line.StateDir):
		return line.StateDir
	}
	return filepath.Join(filepath.Dir(file), line.StateDir)
}

// isEmpty reports whether a configuration that can be read has nothing in it but comments.
func isEmpty(file string) bool {
	text, err := tomlfile.ReadFile(file)
	if err != nil {
		return false
	}
	doc, _ := tomlfile.Parse(file, text)
	return doc != nil && len(doc.Tree()) == 0
}

// usable reports whether the configuration file no longer has what kept vipd from starting with it, and s is from such a file.
func (d *Daemon) usable(s *store.Snapshot) bool {
	_, problems, err := config.Load(d.ConfigFile)
	if err != nil || config.Unusable(problems) != nil {
		return false
	}
	stays := s.Services.Len() > 0 || s.Settings != nil && len(s.Settings.Tree()) > 0
	return !isEmpty(d.ConfigFile) || !stays
}

// startProblems says that vipd has started with the last good configuration, until the file can be used.
func (d *Daemon) startProblems() []balancer.Problem {
	if !d.misled.Load() {
		return nil
	}
	return []balancer.Problem{{
		Severity: balancer.SeverityWarning, Origin: balancer.Origin{File: d.ConfigFile},
		Text: "vipd started with the last good configuration because this file can't be used; fix it, and restart vipd if status asks for it",
	}}
}

// ErrConfig is what an error of New is (errors.Is) when the configuration can't be read or used: until it is mended,
// another attempt ends the same way.
var ErrConfig = errors.New("the configuration can't be used")

// checkEmptied returns an error if the configuration says nothing, though an earlier vipd has left addresses of services: the
// power failed, or a disk was full. They stay as they are until the file is mended.
func (d *Daemon) checkEmptied() error {
	if d.AllowEmpty || d.mistake != nil || !d.host.Inherited() || !isEmpty(d.ConfigFile) {
		return nil
	}
	return configError{fmt.Errorf("%s is empty, and an earlier vipd has left services here, which stay as they are: restore the file; "+
		"if it is meant to be empty: vipd --allow-empty once, or vipctl cleanup", d.ConfigFile)}
}

type configError struct{ error }

func (e configError) Is(target error) bool { return target == ErrConfig }
func (e configError) Unwrap() error        { return e.error }
