#!/bin/sh
# Creates a virtual environment with the packages of requirements.lock, a file of this folder:
#   install.sh FOLDER cpu INDEX   torch without CUDA, from an index of such builds
#   install.sh FOLDER cpu ''      torch without CUDA, from the index of all other packages
#   install.sh FOLDER cuda        torch of the lock, with CUDA
# The environment has no pip, because packages are never installed into a running image.
set -eu
folder=$1
torch=$2

install() {
    python -m pip --python "$folder/bin/python" install --no-deps "$@"
}

case $torch in
cpu | cuda) ;;
*)
    echo "TORCH is cpu or cuda, not '$torch'." >&2
    exit 2
    ;;
esac
python -m venv --without-pip "$folder"
cp requirements.lock wanted.txt
if [ "$torch" = cpu ]; then
    # This build has the lock's version and a digest that the lock does not know.
    install ${3:+--index-url "$3"} "$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.lock)"
    if grep -qs "^cuda[^=]*= '" "$folder"/lib/python3*/site-packages/torch/version.py; then
        echo "The index has torch with CUDA only. Name one without CUDA with TORCH_INDEX." >&2
        exit 2
    fi
    awk '/^[^ #]/ { wanted = !/^(torch|triton|cuda-[a-z-]+|nvidia-[a-z0-9-]+)==/ } wanted' \
        requirements.lock >wanted.txt
fi
install --require-hashes --requirement wanted.txt
python -m pip --python "$folder/bin/python" check
