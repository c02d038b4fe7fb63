package keepalived

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// File is keepalived's default configuration file.
const File = "/etc/keepalived/keepalived.conf"

// Router is a virtual router (vrrp_instance). ID is 0 and Interface is "" if they are unknown.
type Router struct {
	ID        int
	Interface string
}

// maxDepth is the maximum depth of nested includes, as in keepalived.
const maxDepth = 10

// Routers returns the routers in a configuration file and in the files that it includes. read
// returns the content of a file, and glob lists the files that match a pattern.
func Routers(file string, read func(path string) string, glob func(pattern string) []string) (all []Router) {
	text := words(file, read, glob, maxDepth)
	for i, word := range text {
		next := ""
		if i+1 < len(text) {
			next = text[i+1]
		}
		switch {
		case word == "vrrp_instance":
			all = append(all, Router{})
		case len(all) == 0: // not in a router, but for example in global_defs
		case word == "interface":
			all[len(all)-1].Interface = next
		case word == "virtual_router_id":
			all[len(all)-1].ID, _ = strconv.Atoi(next) // 0 if it is a variable
		}
	}
	return all
}

// words returns the words in a configuration file and in the files that it includes. It omits
// comments and conditional lines.
func words(file string, read func(string) string, glob func(string) []string, depth int) (all []string) {
	for line := range strings.Lines(read(file)) {
		if i := strings.IndexAny(line, "#!"); i >= 0 {
			line = line[:i]
		}
		fields := strings.Fields(strings.NewReplacer("{", " { ", "}", " } ").Replace(line))
		switch {
		case len(fields) == 0 || strings.HasPrefix(fields[0], "@"):
		case len(fields) > 1 && strings.HasPrefix(fields[0], "include"):
			pattern := strings.Trim(fields[1], `"`)
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(file), pattern)
			}
			for _, included := range glob(pattern) {
				if depth > 0 {
					all = append(all, words(included, read, glob, depth-1)...)
				}
			}
		default:
			all = append(all, fields...)
		}
	}
	return all
}

// FileOf returns the configuration file that keepalived reads if it is started with these
// arguments.
func FileOf(args []string) string {
	for i, arg := range args {
		name, value, given := strings.Cut(arg, "=")
		switch {
		case name == "--use-file" && given:
			return value
		case (arg == "-f" || arg == "--use-file") && i+1 < len(args):
			return args[i+1]
		case strings.HasPrefix(arg, "-f"):
			return arg[len("-f"):]
		}
	}
	return File
}

// Running returns the routers of all keepalived processes that this process sees, in any network
// namespace.
func Running() (all []Router) {
	var files []string
	processes, _ := filepath.Glob("/proc/[0-9]*/comm") // fails only for invalid patterns
	for _, comm := range processes {
		if name, err := os.ReadFile(comm); err != nil || strings.TrimSpace(string(name)) != "keepalived" {
			continue
		}
		args, err := os.ReadFile(filepath.Join(filepath.Dir(comm), "cmdline"))
		if file := FileOf(strings.Split(string(args), "\x00")); err == nil && len(args) > 0 && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	for _, file := range files {
		all = append(all, Routers(file, readFile, globFiles)...)
	}
	return all
}

// readFile returns a file's content, or "" if it can't be read.
func readFile(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

func globFiles(pattern string) []string {
	files, _ := filepath.Glob(pattern) // an invalid pattern matches no files
	return files
}
