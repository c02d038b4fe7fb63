// Package packaging contains the scripts for the .deb and .rpm packages, which "make package"
// builds into build/packages.
//
//	version     the version of the tree, from its tags, and how packages write it
//	build       compiles, writes manual pages and completions, and calls nfpm, whose version test/nfpm.mod pins
//	nfpm.yaml   what is in the packages
//	deb, rpm    the scripts that the package managers call
//	man         the generator of the manual pages
//
// The same commit makes the same bytes. The tests here look at the files; "make package-test"
// installs, upgrades, downgrades, removes and purges packages on a machine of test/systemd.
package packaging
