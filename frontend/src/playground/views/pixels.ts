/** Decodes images in responses (base64 PNG). */

export function picture(base64: string): Promise<HTMLImageElement> {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("The returned image cannot be displayed."));
    image.src = base64.startsWith("data:") ? base64 : `data:image/png;base64,${base64}`;
  });
}

/** Returns the pixels of an image. Only brightness is used. */
export function drawn(image: HTMLImageElement): [HTMLCanvasElement, CanvasRenderingContext2D, ImageData] {
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) throw new Error("This browser does not support canvas.");
  context.drawImage(image, 0, 0);
  return [canvas, context, context.getImageData(0, 0, canvas.width, canvas.height)];
}

/** Returns a theme colour as red, green and blue. */
export function colour(shade: number): [number, number, number] {
  const probe = document.createElement("span");
  probe.style.color = `var(--c${shade})`;
  document.body.append(probe);
  const found =
    getComputedStyle(probe)
      .color.match(/[\d.]+/g)
      ?.map(Number) ?? [];
  probe.remove();
  return [found[0] ?? 0, found[1] ?? 0, found[2] ?? 0];
}
