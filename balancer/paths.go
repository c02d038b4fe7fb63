package balancer

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// healthPaths are the fields of health that name files. The first word of command does too, where it has a slash:
// without one it is a program in PATH.
func healthPaths() []string { return []string{"ca_file", "cert_file", "key_file"} }

// isRelative reports whether a path depends on where it is read. Definitions are for hosts with paths as Unix has them,
// wherever vipctl looks at them.
func isRelative(path string) bool {
	return path != "" && !strings.HasPrefix(path, "/") && !filepath.IsAbs(path)
}

// isRelativeProgram reports whether the program of a command is a relative path.
func isRelativeProgram(name string) bool { return strings.Contains(name, "/") && isRelative(name) }

// ResolvePaths returns the table of a service, or of [defaults], with the paths in it that are relative made absolute:
// folder is that of the file which has the table. The table itself is not changed. DecodeService refuses relative
// paths, because definitions that come from elsewhere have no folder.
func ResolvePaths(fields map[string]any, folder string) map[string]any {
	if log, is := fields["access_log"].(string); is && log != JournalLog && isRelative(log) {
		fields = maps.Clone(fields)
		fields["access_log"] = filepath.Join(folder, log)
	}
	health, ok := fields["health"].(map[string]any)
	if !ok {
		return fields
	}
	resolved := maps.Clone(health)
	for _, field := range healthPaths() {
		if path, is := health[field].(string); is && isRelative(path) {
			resolved[field] = filepath.Join(folder, path)
		}
	}
	if command, is := health["command"].([]any); is && len(command) > 0 {
		if program, is := command[0].(string); is && isRelativeProgram(program) {
			command = slices.Clone(command)
			command[0] = filepath.Join(folder, program)
			resolved["command"] = command
		}
	}
	fields = maps.Clone(fields)
	fields["health"] = resolved
	return fields
}

// checkPaths notes relative paths: what is left of them has no file that it could be relative to.
func (r *reading) checkPaths(h *Health) {
	for i, path := range []string{h.CAFile, h.CertFile, h.KeyFile} {
		if isRelative(path) {
			r.errorf("health."+healthPaths()[i], "%q must be absolute: each host reads its own file", path)
		}
	}
	if len(h.Command) > 0 && isRelativeProgram(h.Command[0]) {
		r.errorf(element("health.command", 0, ""), "%q must be absolute, or a name that is looked up in PATH: each host runs its own program", h.Command[0])
	}
}
