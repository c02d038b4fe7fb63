package balancer

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// healthPaths lists the fields of health that name files. The program in the field command is also
// a file if it contains a slash; otherwise PATH is searched for it.
func healthPaths() []string { return []string{"ca_file", "cert_file", "key_file"} }

// isRelative reports whether a path is relative. Definitions have Unix paths, even if vipctl reads
// them on Windows.
func isRelative(path string) bool {
	return path != "" && !strings.HasPrefix(path, "/") && !filepath.IsAbs(path)
}

// isRelativeProgram reports whether a command's program is a relative path.
func isRelativeProgram(name string) bool { return strings.Contains(name, "/") && isRelative(name) }

// ResolvePaths returns a copy of the table of a service, or of [defaults], in which all paths are
// absolute. Relative paths start in folder, which contains the table's file. DecodeService refuses
// relative paths, because definitions from etcd have no folder.
func ResolvePaths(fields map[string]any, folder string) map[string]any {
	if log, ok := fields["access_log"].(string); ok && log != JournalLog && isRelative(log) {
		fields = maps.Clone(fields)
		fields["access_log"] = filepath.Join(folder, log)
	}
	if discover, is := fields["discover"].(map[string]any); is {
		fields = maps.Clone(fields)
		fields["discover"] = resolveProgram(discover, "exec", folder)
	}
	if health, set := fields["health"]; set {
		fields = maps.Clone(fields)
		fields["health"] = resolveHealth(health, folder)
	}
	return fields
}

// resolveHealth returns a copy of a health table, or a list of them, in which paths are absolute.
func resolveHealth(health any, folder string) any {
	var list []any
	switch health := health.(type) {
	case map[string]any:
		return resolveCheck(health, folder)
	case []map[string]any:
		for _, table := range health {
			list = append(list, resolveCheck(table, folder))
		}
		return list
	case []any:
		for _, table := range health {
			list = append(list, resolveHealth(table, folder))
		}
		return list
	}
	return health
}

func resolveCheck(health map[string]any, folder string) map[string]any {
	resolved := maps.Clone(health)
	for _, field := range healthPaths() {
		if path, is := health[field].(string); is && isRelative(path) {
			resolved[field] = filepath.Join(folder, path)
		}
	}
	return resolveProgram(resolved, "command", folder)
}

// resolveProgram returns a copy of table in which the command in a field starts with the absolute
// path of its program.
func resolveProgram(table map[string]any, field, folder string) map[string]any {
	command, is := table[field].([]any)
	if !is || len(command) == 0 {
		return table
	}
	if program, is := command[0].(string); is && isRelativeProgram(program) {
		command = slices.Clone(command)
		command[0] = filepath.Join(folder, program)
		table = maps.Clone(table)
		table[field] = command
	}
	return table
}

func (r *healthReader) checkPaths(h *Health) {
	for i, path := range []string{h.CAFile, h.CertFile, h.KeyFile} {
		if isRelative(path) {
			r.errorf(healthPaths()[i], "%q must be absolute: each host reads its own file", path)
		}
	}
	if len(h.Command) > 0 && isRelativeProgram(h.Command[0]) {
		r.errorf(element("command", 0, ""), "%q must be absolute, or a name that is looked up in PATH: each host runs its own program", h.Command[0])
	}
}
