package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/user"

	"vipd/balancer"
)

// checkHost adds warnings for what the health checks of the services need on their host and this one lacks: files,
// programs and users. It may be another host that the definitions are for.
func (d *definitions) checkHost() {
	for name, s := range d.services.All() {
		if s.Health == nil {
			continue
		}
		for _, n := range needsOf(s.Health) {
			if n.lacks == "" {
				continue
			}
			d.problems = append(d.problems, balancer.Problem{
				Severity: balancer.SeverityWarning, Service: name, Origin: s.Origin.At(n.field), Field: n.field, Text: n.lacks,
			})
		}
	}
	d.sortProblems()
}

// need is what a field of health asks of the host; lacks says what is not there, "" if all is.
type need struct{ field, lacks string }

func needsOf(h *balancer.Health) []need {
	needs := []need{
		{"health.ca_file", lacksFile(h.CAFile)}, {"health.cert_file", lacksFile(h.CertFile)}, {"health.key_file", lacksFile(h.KeyFile)},
	}
	if h.Type == balancer.ExecHealth {
		needs = append(needs, need{"health.command", lacksProgram(h.Command[0])}, need{"health.user", lacksUser(h.User)})
	}
	return needs
}

func lacksFile(path string) string {
	if path == "" {
		return ""
	}
	// One that may not be looked at is another's business: vipd may be somebody who may.
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no file " + path + " on this host"
	case err == nil && !info.Mode().IsRegular():
		return path + " is not a regular file on this host"
	}
	return ""
}

func lacksProgram(name string) string {
	switch _, err := exec.LookPath(name); {
	case errors.Is(err, exec.ErrNotFound):
		return "there is no program " + name + " in PATH on this host"
	case errors.Is(err, fs.ErrNotExist):
		return "there is no program " + name + " on this host"
	case errors.Is(err, fs.ErrPermission):
		return name + " is not executable on this host"
	}
	return ""
}

func lacksUser(name string) string {
	var unknown user.UnknownUserError
	if name == "" {
		return ""
	}
	if _, err := user.Lookup(name); errors.As(err, &unknown) {
		return "there is no user " + name + " on this host"
	}
	return ""
}
